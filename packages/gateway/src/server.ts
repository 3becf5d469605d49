import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { ApiError, internalError, type ResolveResponse } from '@releap/contract';
import type { Logger } from 'pino';
import { EndpointPools, parseEndpoint } from './endpoints.ts';
import { CallerGone, sendError } from './errors.ts';
import { hasBody } from './headers.ts';
import { proxy } from './proxy.ts';
import { Resolver } from './resolve.ts';
import { parseToolboxPath } from './toolbox-path.ts';
import { refuseUpgrade, tunnel, wantsWebSocket } from './upgrade.ts';

export interface GatewayOptions {
  listen: {
    host: string;
    /** 0 for any free one. */
    port: number;
  };
  /** The control plane: `http://host:port` or `unix:/absolute/path.sock`. */
  controlUrl: string;
  /** Token of gateways; read at each request to the control plane. */
  gatewayToken: () => Promise<string>;
  log: Logger;
  limits?: Partial<GatewayLimits>;
}

/** Bounds of one gateway; times in milliseconds. */
export interface GatewayLimits {
  /** To a runner. */
  connectMs: number;
  handshakeMs: number;
  /** Until the answer begins. A command answers when it has ended, so this bounds the longest command. */
  answerMs: number;
  /** Without a byte: an upload that stands still. */
  uploadIdleMs: number;
  /** Without a byte: an answer, whether the runner or the caller is the one who stands still, or a tunnel. */
  idleMs: number;
  /** All headers of a request, and the time in which they must come. */
  headerBytes: number;
  headerMs: number;
  bodyBytes: number;
  connections: number;
  /** How long `close` waits for requests under way. */
  graceMs: number;
}

export const GATEWAY_LIMITS: GatewayLimits = {
  connectMs: 5_000,
  handshakeMs: 15_000,
  answerMs: 24 * 3_600_000,
  uploadIdleMs: 60_000,
  idleMs: 3_600_000,
  headerBytes: 16 * 1024,
  headerMs: 15_000,
  bodyBytes: 16 * 1024 ** 3,
  connections: 10_000,
  graceMs: 5_000,
};

export interface Gateway {
  port: number;
  /** Takes no new requests, gives those under way a moment, then ends them. */
  close(): Promise<void>;
}

/** Starts the data plane: what reaches a sandbox from outside. */
export async function startGateway(options: GatewayOptions): Promise<Gateway> {
  const { listen, controlUrl, gatewayToken, log } = options;
  const limits = { ...GATEWAY_LIMITS, ...options.limits };
  parseEndpoint(controlUrl);
  const pools = new EndpointPools({
    connectMs: limits.connectMs,
    headersMs: limits.answerMs,
    bodyMs: limits.idleMs,
  });
  const resolver = new Resolver({ controlUrl, gatewayToken, pools, log });
  const tunnels = new Set<Duplex>();

  const server = createServer({
    maxHeaderSize: limits.headerBytes,
    headersTimeout: limits.headerMs,
    // A body may take as long as it moves; `uploadIdleMs` bounds it when it does not.
    requestTimeout: 0,
    // Finds callers that vanished without a word while an answer is long in coming.
    keepAlive: true,
    keepAliveInitialDelay: 30_000,
    noDelay: true,
    shouldUpgradeCallback: wantsWebSocket,
  });
  server.maxConnections = limits.connections;

  const locate = async (request: IncomingMessage): Promise<{ found: ResolveResponse; path: string }> => {
    const { vmId, tail } = parseToolboxPath(request.url ?? '');
    const found = await resolver.resolve(vmId, request.headers.authorization);
    return { found, path: `/vms/${encodeURIComponent(found.vm_id)}/toolbox/${tail}` };
  };

  const serve = async (request: IncomingMessage, response: ServerResponse, expectsContinue: boolean) => {
    response.on('error', () => {});
    try {
      if (request.url === '/healthz' && (request.method === 'GET' || request.method === 'HEAD')) {
        response.setHeader('content-type', 'application/json; charset=utf-8');
        response.end('{"status":"ok"}');
        return;
      }
      const { found, path } = await locate(request);
      await proxy(request, response, {
        pool: pools.get(found.data_url),
        path,
        dataToken: found.data_token,
        maxBodyBytes: limits.bodyBytes,
        uploadIdleMs: limits.uploadIdleMs,
        idleMs: limits.idleMs,
        expectsContinue,
      });
    } catch (error) {
      if (error instanceof CallerGone) return;
      const refusal = explain(error, request);
      // A caller that waits for leave to send its body, and gets none, may send it all the same.
      sendError(response, refusal, !hasBody(request.headers));
    }
  };

  const explain = (error: unknown, request: IncomingMessage): ApiError => {
    const refusal = error instanceof ApiError ? error : internalError(error);
    if (refusal.status >= 500) {
      const path = request.url?.split('?', 1)[0];
      log.warn(
        { err: refusal.cause ?? error, status: refusal.status, path },
        'a request could not be served',
      );
    }
    return refusal;
  };

  server.on('request', (request, response) => void serve(request, response, false));
  server.on('checkContinue', (request, response) => void serve(request, response, true));
  server.on('upgrade', (request: IncomingMessage, caller: Duplex, head: Buffer) => {
    tunnels.add(caller);
    caller.on('error', () => caller.destroy());
    caller.once('close', () => tunnels.delete(caller));
    const run = async () => {
      const { found, path } = await locate(request);
      const { handshakeMs, idleMs } = limits;
      const endpoint = parseEndpoint(found.data_url);
      await tunnel(request, caller, head, {
        endpoint,
        path,
        dataToken: found.data_token,
        handshakeMs,
        idleMs,
      });
    };
    run().catch((error: unknown) => {
      if (error instanceof CallerGone) caller.destroy();
      else refuseUpgrade(caller, explain(error, request));
    });
  });
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Socket) => answerMalformed(error, socket));

  server.listen({ host: listen.host, port: listen.port });
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  log.info({ host: listen.host, port }, 'gateway is up');

  return {
    port,
    close: async () => {
      const closed = once(server, 'close');
      server.close();
      server.closeIdleConnections();
      const timer = setTimeout(() => server.closeAllConnections(), limits.graceMs);
      for (const caller of tunnels) caller.destroy();
      await closed;
      clearTimeout(timer);
      await pools.destroy();
    },
  };
}

/** What Node's strict parser refused: two lengths, a length and chunks, headers too large, no HTTP at all. */
function answerMalformed(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy();
    return;
  }
  const tooLarge = error.code === 'HPE_HEADER_OVERFLOW';
  const late = error.code === 'ERR_HTTP_REQUEST_TIMEOUT';
  const [status, message] = tooLarge
    ? ([431, 'the request headers are too large'] as const)
    : late
      ? ([408, 'the request headers took too long'] as const)
      : ([400, 'malformed HTTP request'] as const);
  const body = JSON.stringify({ error: message });
  socket.end(
    `HTTP/1.1 ${status} Bad Request\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\nconnection: close\r\n\r\n${body}`,
  );
}
