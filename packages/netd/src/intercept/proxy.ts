/** Intercepted connections: TLS is ended with a certificate of our own, requests are read strictly and sent on. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { TLSSocket, type SecureContext } from 'node:tls';
import type { Handover, InterceptSecret } from '@releap/contract/netd';
import { RateLimit } from '@releap/contract/netd';
import type { Log } from '../log.ts';
import type { Authority } from './authority.ts';
import { exchange, reasonOf, UpstreamFailure, type ExchangeContext } from './exchange.ts';
import { serveHttp2 } from './http2.ts';
import { RefusedRequest } from './refused-request.ts';
import { SandboxSecrets } from './sandbox-secrets.ts';
import { Upstream } from './upstream.ts';
import { upgrade } from './upgrade.ts';

export interface ProxyOptions {
  authority: Authority;
  /** Authorities that servers are verified with. */
  trusted: () => SecureContext;
  log: Log;
}

const HEADER_MAX_BYTES = 64 * 1024;
const HEAD_MS = 30_000;
const HANDSHAKE_MS = 10_000;
const IDLE_MS = 75_000;
/** How long a connection waits for the secrets of its sandbox. */
const SECRETS_MS = 5_000;
/** Of one sandbox at a time. */
const CONNECTIONS_PER_SANDBOX = 256;
const NEW_CONNECTIONS = { perSecond: 100, burst: 400 };
const LOG_LINES = { perSecond: 1, burst: 20 };

class Sandbox {
  readonly upstream: Upstream;
  readonly connections = new Set<Socket>();
  readonly fresh = new RateLimit(NEW_CONNECTIONS);
  readonly logged = new RateLimit(LOG_LINES);
  readonly known = Promise.withResolvers<SandboxSecrets>();
  /** For connections over TLS, and for those without. */
  secrets: SandboxSecrets | undefined;
  plainSecrets: SandboxSecrets | undefined;

  constructor(trusted: () => SecureContext) {
    this.upstream = new Upstream(trusted);
  }

  close(): void {
    this.known.promise.catch(() => undefined);
    this.known.reject(new Error('the sandbox has ended'));
    for (const socket of this.connections) socket.destroy();
    this.upstream.close();
  }
}

export class Proxy {
  readonly #options: ProxyOptions;
  readonly #sandboxes = new Map<string, Sandbox>();
  readonly #contexts = new WeakMap<Duplex, { connection: Handover; sandbox: Sandbox }>();
  readonly #server: Server;

  constructor(options: ProxyOptions) {
    this.#options = options;
    this.#server = createServer({
      maxHeaderSize: HEADER_MAX_BYTES,
      headersTimeout: HEAD_MS,
      requestTimeout: 0,
      keepAliveTimeout: IDLE_MS,
      insecureHTTPParser: false,
      requireHostHeader: false,
      shouldUpgradeCallback: ({ headers }) => headers.upgrade?.toLowerCase() === 'websocket',
    });
    this.#server.on('request', (request, response) => void this.#onRequest(request, response));
    this.#server.on('checkContinue', (request, response) => {
      response.writeContinue();
      void this.#onRequest(request, response);
    });
    this.#server.on('upgrade', (request, socket, head) => this.#onUpgrade(request, socket, head));
    this.#server.on('clientError', (error, socket) => this.#onClientError(error, socket));
  }

  get isEmpty(): boolean {
    return this.#sandboxes.size === 0;
  }

  /** Where secrets of any sandbox may be sent. */
  get domains(): string[] {
    return [...new Set([...this.#sandboxes.values()].flatMap(({ secrets }) => secrets?.domains ?? []))];
  }

  /** Open connections use the new values from their next request on. */
  put(vmId: string, secrets: readonly InterceptSecret[]): void {
    const sandbox = this.#sandbox(vmId);
    sandbox.secrets = new SandboxSecrets(secrets);
    sandbox.plainSecrets = new SandboxSecrets(secrets, false);
    sandbox.known.resolve(sandbox.secrets);
  }

  remove(vmId: string): void {
    this.#sandboxes.get(vmId)?.close();
    this.#sandboxes.delete(vmId);
  }

  keepOnly(keep: ReadonlySet<string>): void {
    for (const vmId of this.#sandboxes.keys()) if (!keep.has(vmId)) this.remove(vmId);
  }

  /** Serves a connection of a guest, whose bytes come from this socket. */
  async accept(socket: Socket, connection: Handover): Promise<void> {
    const { vm_id: vmId } = connection;
    const sandbox = this.#sandbox(vmId);
    if (sandbox.connections.size >= CONNECTIONS_PER_SANDBOX || !sandbox.fresh.take()) {
      this.#warn(sandbox, connection, 'a sandbox has too many intercepted connections');
      socket.destroy();
      return;
    }
    sandbox.connections.add(socket);
    socket.on('error', () => socket.destroy());
    socket.once('close', () => {
      sandbox.connections.delete(socket);
      // One that the runner has not named: it has ended, or its secrets have not come in time.
      const isUnknown = sandbox.secrets === undefined && sandbox.connections.size === 0;
      if (isUnknown && this.#sandboxes.get(vmId) === sandbox) this.remove(vmId);
    });
    const late = setTimeout(() => socket.destroy(), SECRETS_MS);
    try {
      await (sandbox.secrets ?? sandbox.known.promise);
      clearTimeout(late);
      if (socket.destroyed) return;
      if (connection.tls) {
        // What the server does not speak is not offered: a request is never translated.
        const http2 = await sandbox.upstream.speaksHttp2(connection);
        if (!socket.destroyed) this.#handshake(socket, connection, sandbox, http2);
      } else this.#serve(socket, connection, sandbox);
    } catch {
      socket.destroy();
    } finally {
      clearTimeout(late);
    }
  }

  close(): void {
    for (const sandbox of this.#sandboxes.values()) sandbox.close();
    this.#sandboxes.clear();
    this.#server.closeAllConnections();
  }

  #sandbox(vmId: string): Sandbox {
    const known = this.#sandboxes.get(vmId);
    if (known !== undefined) return known;
    const sandbox = new Sandbox(this.#options.trusted);
    this.#sandboxes.set(vmId, sandbox);
    return sandbox;
  }

  #handshake(socket: Socket, connection: Handover, sandbox: Sandbox, http2: boolean): void {
    const secure = new TLSSocket(socket, {
      isServer: true,
      ALPNProtocols: http2 ? ['h2', 'http/1.1'] : ['http/1.1'],
      SNICallback: (name, done) => void this.#certify(name, connection, done),
    });
    const late = setTimeout(() => secure.destroy(), HANDSHAKE_MS);
    secure.on('error', () => secure.destroy());
    secure.once('close', () => {
      clearTimeout(late);
      socket.destroy();
    });
    secure.once('secure', () => {
      clearTimeout(late);
      // As `tls.Server` does: HTTP/2 waits for it.
      Object.assign(secure, { secureConnecting: false });
      if (secure.alpnProtocol === 'h2') this.#serveHttp2(secure, connection, sandbox);
      else this.#serve(secure, connection, sandbox);
    });
  }

  async #certify(
    name: string,
    { host }: Handover,
    done: (error: Error | null, context?: SecureContext) => void,
  ): Promise<void> {
    try {
      if (name.toLowerCase().replace(/\.$/, '') !== host)
        throw new Error('another name than that of the connection');
      done(null, await this.#options.authority.contextFor(host));
    } catch (error) {
      done(error instanceof Error ? error : new Error(String(error)));
    }
  }

  #serve(socket: Duplex, connection: Handover, sandbox: Sandbox): void {
    this.#contexts.set(socket, { connection, sandbox });
    this.#server.emit('connection', socket);
  }

  #serveHttp2(socket: Duplex, connection: Handover, sandbox: Sandbox): void {
    this.#contexts.set(socket, { connection, sandbox });
    serveHttp2(socket, {
      context: () => this.#contextOf(socket),
      onFailure: (error) => {
        const told = failure(error, connection);
        this.#warn(sandbox, connection, 'an intercepted request failed', told.text);
        return told;
      },
    });
  }

  #contextOf(socket: Duplex): (ExchangeContext & { sandbox: Sandbox }) | undefined {
    const found = this.#contexts.get(socket);
    const secrets = found?.connection.tls === false ? found.sandbox.plainSecrets : found?.sandbox.secrets;
    return found === undefined || secrets === undefined
      ? undefined
      : { ...found, secrets, upstream: found.sandbox.upstream };
  }

  async #onRequest(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const context = this.#contextOf(request.socket);
    if (context === undefined) return void request.socket.destroy();
    try {
      await exchange(request, response, context);
    } catch (error) {
      const { status, text } = failure(error, context.connection);
      this.#warn(context.sandbox, context.connection, 'an intercepted request failed', text);
      if (response.headersSent) return void response.destroy();
      // What was not read of the request may be anything.
      response.writeHead(status, { 'content-type': 'text/plain; charset=utf-8', connection: 'close' });
      response.end(`releap: ${text}\n`);
    }
  }

  #onUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    const context = this.#contextOf(request.socket);
    if (context === undefined) return void socket.destroy();
    upgrade(request, socket, head, context).catch((error: unknown) => {
      const { status, text } = failure(error, context.connection);
      this.#warn(context.sandbox, context.connection, 'an intercepted upgrade failed', text);
      if (socket.writable) socket.end(plainAnswer(status, `releap: ${text}\n`));
    });
  }

  #onClientError(error: Error, socket: Duplex): void {
    const context = this.#contextOf(socket);
    const { code } = error as { code?: string };
    if (context !== undefined && code?.startsWith('HPE_'))
      this.#warn(context.sandbox, context.connection, 'a request was refused', code);
    if (socket.writable) socket.end(plainAnswer(400, 'releap: the request is not valid HTTP/1.1\n'));
    else socket.destroy();
  }

  #warn(sandbox: Sandbox, { vm_id, host }: Handover, message: string, why = ''): void {
    if (sandbox.logged.take()) this.#options.log.warn({ vm_id, host, why }, message);
  }
}

function failure(error: unknown, { host }: Handover): { status: number; text: string } {
  if (error instanceof RefusedRequest) return { status: error.status, text: error.message };
  if (error instanceof UpstreamFailure)
    return { status: 502, text: `the connection to ${host} failed: ${error.message}` };
  return { status: 502, text: `the exchange with ${host} failed: ${reasonOf(error)}` };
}

function plainAnswer(status: number, text: string): string {
  return `HTTP/1.1 ${status} Refused\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: ${Buffer.byteLength(text)}\r\nconnection: close\r\n\r\n${text}`;
}
