import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { ApiError, internalError, REQUEST_ID_HEADER, requestIdSource } from '@releap/contract';
import type { Logger } from 'pino';
import { Grants } from './control/grants.ts';
import { answerMalformed } from './http/client-error.ts';
import { EndpointPools, parseEndpoint } from './http/endpoints.ts';
import { ClientDisconnected, sendError } from './http/errors.ts';
import { hasBody } from './http/headers.ts';
import { proxy } from './http/proxy.ts';
import { refuseUpgrade, tunnel, wantsWebSocket } from './http/upgrade.ts';
import { GATEWAY_LIMITS, type GatewayLimits } from './limits.ts';
import { createRouter } from './targets/router.ts';
import { SshRoutes } from './ssh/ssh-routes.ts';
import { startSshServer, type SshServer } from './ssh/ssh-server.ts';
import type { SshLimits } from './ssh/ssh-limits.ts';
import type { RequestHead, TargetKind } from './targets/target.ts';
import { toolbox } from './targets/toolbox.ts';

export interface GatewayOptions {
  listen: {
    host: string;
    /** 0 for any free one. */
    port: number;
  };
  /** Internal listener of the control plane: `http(s)://host:port` or `unix:/absolute/path.sock`. */
  controlUrl: string;
  /** The gateway's credential for that listener; read for each connection. */
  credential: () => Promise<string>;
  /** Kinds that this gateway routes; the first match wins. Default: the toolbox. */
  kinds?: readonly TargetKind[];
  /** Without it, SSH is not served. */
  ssh?: {
    listen: { host: string; port: number };
    /** Private keys, in OpenSSH's or PEM form. */
    hostKeys: readonly string[];
    /** Where clients reach it, if not where it listens. */
    publicAddress?: { host: string; port: number };
    limits?: Partial<SshLimits>;
  };
  log: Logger;
  limits?: Partial<GatewayLimits>;
}

export interface Gateway {
  port: number;
  /** The SSH listener, if there is one. */
  ssh: Pick<SshServer, 'port' | 'hostKeys'> | undefined;
  /** Refuses new requests, and after a grace period ends open ones. */
  close(): Promise<void>;
}

/** Starts the gateway: it routes requests to sandboxes. */
export async function startGateway(options: GatewayOptions): Promise<Gateway> {
  const { listen, controlUrl, credential, log, kinds = [toolbox] } = options;
  const limits = { ...GATEWAY_LIMITS, ...options.limits };
  const route = createRouter(kinds);
  const grants = new Grants({
    controlUrl,
    credential,
    log,
    kinds: [...kinds.map(({ kind }) => kind), ...(options.ssh === undefined ? [] : ['ssh'])],
    decisionMs: limits.decisionMs,
  });
  const pools = new EndpointPools({
    connectMs: limits.connectMs,
    headersMs: limits.answerMs,
    bodyMs: limits.idleMs,
  });
  const tunnels = new Set<Duplex>();
  const newRequestId = requestIdSource();
  const requestIdOf = (request: IncomingMessage): string => newRequestId(request.headers[REQUEST_ID_HEADER]);

  const server = createServer({
    maxHeaderSize: limits.headerBytes,
    headersTimeout: limits.headerMs,
    // A body may take any time while bytes arrive; `uploadIdleMs` bounds the time without any.
    requestTimeout: 0,
    // Detects clients that disappeared without closing the connection during a long response.
    keepAlive: true,
    keepAliveInitialDelay: 30_000,
    noDelay: true,
    shouldUpgradeCallback: wantsWebSocket,
  });
  server.maxConnections = limits.connections;

  const serve = async (request: IncomingMessage, response: ServerResponse, expectsContinue: boolean) => {
    response.on('error', () => {});
    const requestId = requestIdOf(request);
    response.setHeader(REQUEST_ID_HEADER, requestId);
    try {
      if (request.url === '/healthz' && (request.method === 'GET' || request.method === 'HEAD')) {
        response.setHeader('content-type', 'application/json; charset=utf-8');
        response.end('{"status":"ok"}');
        return;
      }
      const hostKeys = sshRoutes?.hostKeys(headOf(request));
      if (hostKeys !== undefined) {
        response.setHeader('content-type', 'application/json; charset=utf-8');
        response.end(JSON.stringify(hostKeys));
        return;
      }
      const { target, token, upstreamPath, headers } = route(headOf(request));
      using lease = await grants.lease(target, token);
      await proxy(request, response, {
        pool: pools.get(lease.dataUrl),
        path: upstreamPath(lease),
        dataToken: lease.dataToken,
        revoked: lease.revoked,
        headers,
        requestId,
        maxBodyBytes: limits.bodyBytes,
        uploadIdleMs: limits.uploadIdleMs,
        idleMs: limits.idleMs,
        expectsContinue,
      });
    } catch (error) {
      if (error instanceof ClientDisconnected) return;
      const refusal = explain(error, request, requestId);
      // A client that waits for 100 Continue and gets an error may still send its body.
      sendError(response, refusal, !hasBody(request.headers));
    }
  };

  const explain = (error: unknown, request: IncomingMessage, reqId: string): ApiError => {
    const refusal = error instanceof ApiError ? error : internalError(error);
    if (refusal.status >= 500) {
      const path = request.url?.split('?', 1)[0];
      log.warn({ err: refusal.cause ?? error, status: refusal.status, path, reqId }, 'a request failed');
    }
    return refusal;
  };

  server.on('request', (request, response) => void serve(request, response, false));
  server.on('checkContinue', (request, response) => void serve(request, response, true));
  server.on('upgrade', (request: IncomingMessage, client: Duplex, head: Buffer) => {
    tunnels.add(client);
    client.on('error', () => client.destroy());
    client.once('close', () => tunnels.delete(client));
    const requestId = requestIdOf(request);
    const run = async () => {
      const login = sshRoutes?.login(headOf(request));
      if (login !== undefined) {
        using _granted = await grants.lease(login.target, login.token);
        sshRoutes?.accept(request, client, head, login);
        return;
      }
      const { target, token, upstreamPath, headers } = route(headOf(request));
      using lease = await grants.lease(target, token);
      const { handshakeMs, idleMs } = limits;
      await tunnel(request, client, head, {
        endpoint: parseEndpoint(lease.dataUrl),
        path: upstreamPath(lease),
        dataToken: lease.dataToken,
        revoked: lease.revoked,
        headers,
        requestId,
        handshakeMs,
        idleMs,
      });
    };
    run().catch((error: unknown) => {
      if (error instanceof ClientDisconnected) client.destroy();
      else refuseUpgrade(client, explain(error, request, requestId), requestId);
    });
  });
  server.on('clientError', answerMalformed);

  const ssh = options.ssh === undefined ? undefined : await startSshServer({ ...options.ssh, grants, log });
  const sshRoutes =
    ssh === undefined
      ? undefined
      : new SshRoutes({
          server: ssh,
          address: options.ssh?.publicAddress ?? { host: options.ssh?.listen.host ?? '', port: ssh.port },
        });

  server.listen({ host: listen.host, port: listen.port });
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  log.info({ host: listen.host, port, kinds: kinds.map(({ kind }) => kind) }, 'the gateway listens');

  return {
    port,
    ssh,
    close: async () => {
      const closed = once(server, 'close');
      server.close();
      server.closeIdleConnections();
      const timer = setTimeout(() => server.closeAllConnections(), limits.graceMs);
      for (const client of tunnels) client.destroy();
      await Promise.all([closed, ssh?.close()]);
      clearTimeout(timer);
      await Promise.all([pools.destroy(), grants.close()]);
    },
  };
}

const headOf = ({ method = 'GET', url = '/', headers }: IncomingMessage): RequestHead => ({
  method,
  url,
  headers,
});
