/** Connections to the servers: verified, and kept for the next requests of the same sandbox. */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect as connectHttp2, type ClientHttp2Session } from 'node:http2';
import {
  Agent as HttpAgent,
  request as httpRequest,
  type ClientRequest,
  type RequestOptions,
} from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import {
  connect as connectTls,
  createSecureContext,
  rootCertificates,
  type SecureContext,
  TLSSocket,
} from 'node:tls';
import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Handover } from '@releap/contract/netd';

const CONNECT_MS = 15_000;
/** Most servers keep an idle connection for 5 s or longer. */
const IDLE_MS = 4_000;
const IDLE_PER_HOST = 16;
const HEADER_MAX_BYTES = 64 * 1024;
/** How long a client's handshake waits for the protocol of its server: clients wait for 10 s or longer. */
const PROTOCOL_MS = 5_000;
/** How long it is remembered that a server does not speak HTTP/2. */
const PROTOCOL_KNOWN_MS = 10 * 60_000;
const PROTOCOLS_MAX = 1_000;
/** Idle connections of HTTP/2 are closed after this time. */
const SESSION_IDLE_MS = 60_000;
/**
 * What a server may send on a connection of HTTP/2 before it is read: with the default of 64 KiB, no more than that arrives in a
 * round trip. It bounds what a guest that reads nothing has the interceptor hold.
 */
const WINDOW_BYTES = 512 * 1024;
/** Debian, Alpine; Red Hat. */
const HOST_BUNDLES = ['/etc/ssl/certs/ca-certificates.crt', '/etc/pki/tls/certs/ca-bundle.crt'];

/** The authorities of the host, or Node's own where it has none. */
export function trustedAuthorities(extra?: string): SecureContext {
  const bundle = HOST_BUNDLES.map((path) => readIfThere(path)).find((text) => text !== undefined);
  return createSecureContext({
    ca: [...(bundle === undefined ? rootCertificates : [bundle]), ...(extra === undefined ? [] : [extra])],
    minVersion: 'TLSv1.2',
  });
}

/** Uses a connection that is open already for the first request to its server. */
class AdoptingAgent extends HttpsAgent {
  readonly #sockets = new Map<string, TLSSocket>();

  /** The next connection to this server, unless it ends before. */
  adoptSocket(server: string, socket: TLSSocket): void {
    this.#sockets.get(server)?.destroy();
    this.#sockets.set(server, socket);
    const forget = (): void => {
      if (this.#sockets.get(server) === socket) this.#sockets.delete(server);
    };
    socket.once('close', forget);
    socket.setTimeout(IDLE_MS, () => {
      if (this.#sockets.get(server) === socket) socket.destroy();
    });
  }

  override createConnection(
    options: RequestOptions & { servername?: string },
    done?: (error: Error | null, socket: Duplex) => void,
  ): Duplex | null | undefined {
    const { servername = '', host, port } = options;
    const server = keyOf({ host: servername, address: host ?? '', port: Number(port) });
    const handed = this.#sockets.get(server);
    if (handed === undefined) return super.createConnection(options, done);
    this.#sockets.delete(server);
    return handed;
  }

  override destroy(): void {
    for (const socket of this.#sockets.values()) socket.destroy();
    super.destroy();
  }
}

function keyOf({ host, address, port }: Pick<Handover, 'host' | 'address' | 'port'>): string {
  return `${host} ${address} ${port}`;
}

/** The upstream connections of one sandbox. */
export class Upstream {
  readonly #context: () => SecureContext;
  readonly #http = new HttpAgent({ keepAlive: true, maxFreeSockets: IDLE_PER_HOST, timeout: IDLE_MS });
  readonly #https = new AdoptingAgent({ keepAlive: true, maxFreeSockets: IDLE_PER_HOST, timeout: IDLE_MS });
  /** Connections of HTTP/2, by server. */
  readonly #sessions = new Map<string, Promise<ClientHttp2Session>>();
  /** Servers that do not speak HTTP/2, and until when that is believed, by `performance.now()`. */
  readonly #http1Until = new Map<string, number>();

  constructor(context: () => SecureContext) {
    this.#context = context;
  }

  /** Whether this server speaks HTTP/2. One that cannot be reached, or takes its time, does not. */
  async speaksHttp2(connection: Handover): Promise<boolean> {
    const server = keyOf(connection);
    if ((this.#http1Until.get(server) ?? 0) > performance.now()) return false;
    const asked = this.session(connection).then(
      () => true,
      () => false,
    );
    return await Promise.race([asked, sleep(PROTOCOL_MS, false, { ref: false })]);
  }

  /** A connection of HTTP/2 to this server, which all requests of the sandbox to it share. @throws when it speaks only HTTP/1.1 */
  async session(connection: Handover): Promise<ClientHttp2Session> {
    const server = keyOf(connection);
    const known = this.#sessions.get(server);
    if (known !== undefined) return await known;
    const opening = this.#openSession(connection, server);
    this.#sessions.set(server, opening);
    opening.then(
      (session) => session.once('close', () => this.#forget(server, opening)),
      () => this.#forget(server, opening),
    );
    return await opening;
  }

  #forget(server: string, session: Promise<ClientHttp2Session>): void {
    if (this.#sessions.get(server) === session) this.#sessions.delete(server);
  }

  async #openSession(connection: Handover, server: string): Promise<ClientHttp2Session> {
    const { address, port, host } = connection;
    const socket = connectTls({
      host: address,
      port,
      servername: host,
      secureContext: this.#context(),
      rejectUnauthorized: true,
      ALPNProtocols: ['h2', 'http/1.1'],
    });
    try {
      await once(socket, 'secureConnect', { signal: AbortSignal.timeout(CONNECT_MS) });
    } catch (error) {
      socket.destroy();
      throw error;
    }
    if (socket.alpnProtocol !== 'h2') {
      socket.on('error', () => undefined);
      if (this.#http1Until.size >= PROTOCOLS_MAX) this.#http1Until.clear();
      this.#http1Until.set(server, performance.now() + PROTOCOL_KNOWN_MS);
      this.#https.adoptSocket(server, socket);
      throw new Error('it does not speak HTTP/2');
    }
    const session = connectHttp2(`https://${host}`, {
      createConnection: () => socket,
      maxHeaderListPairs: 256,
      settings: { enablePush: false, initialWindowSize: WINDOW_BYTES, maxHeaderListSize: HEADER_MAX_BYTES },
    });
    session.once('connect', () => session.setLocalWindowSize(WINDOW_BYTES));
    // One that the server winds down takes no new requests.
    const onEnd = (): void => session.close();
    session.on('error', onEnd);
    session.on('goaway', onEnd);
    session.setTimeout(SESSION_IDLE_MS, () => session.close());
    return session;
  }

  /** @param fresh on a new connection, which no other request uses */
  request(
    { tls, address, port, host }: Handover,
    {
      method,
      path,
      headers,
      fresh = false,
    }: { method: string; path: string; headers: string[]; fresh?: boolean },
  ): ClientRequest {
    const options: RequestOptions = {
      host: address,
      port,
      method,
      path,
      headers,
      setHost: false,
      maxHeaderSize: HEADER_MAX_BYTES,
      // Never more lenient than the parser of requests.
      insecureHTTPParser: false,
    };
    const secured = {
      ...options,
      servername: host,
      secureContext: this.#context(),
      rejectUnauthorized: true,
      ALPNProtocols: ['http/1.1'],
      agent: fresh ? false : this.#https,
    };
    const sent = tls ? httpsRequest(secured) : httpRequest({ ...options, agent: fresh ? false : this.#http });
    const timer = setTimeout(() => sent.destroy(new Error('it did not answer the connection')), CONNECT_MS);
    sent.once('socket', (socket) => {
      // That of the agent is for idle connections; a server may take its time.
      socket.setTimeout(0);
      const connected = (): void => clearTimeout(timer);
      // Of an earlier request, or of the question for its protocol.
      if (sent.reusedSocket || (socket instanceof TLSSocket && socket.authorized)) connected();
      else socket.once(tls ? 'secureConnect' : 'connect', connected);
    });
    sent.once('close', () => clearTimeout(timer));
    return sent;
  }

  close(): void {
    this.#http.destroy();
    this.#https.destroy();
    for (const opening of this.#sessions.values())
      opening.then(
        (session) => session.destroy(),
        () => undefined,
      );
  }
}

function readIfThere(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}
