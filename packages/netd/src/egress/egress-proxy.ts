import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { Transform } from 'node:stream';
import type { Denial } from '../denied/denials.ts';
import type { Interceptor } from '../intercept/interceptor.ts';
import { splice } from '../splice.ts';
import { decide, type EgressClient } from './decide.ts';
import { type FirstBytes, readFirstBytes } from './first-bytes.ts';
import { HttpRequestGuard } from './http-request-guard.ts';

export interface ProxiedClient extends EgressClient {
  deny(denial: Denial): void;
}

export interface EgressProxyOptions {
  /** A socket that listens with IP_TRANSPARENT: the local address of a connection is the one that the guest connected to. */
  fd: number;
  /** Whose connection it is, told by the source address, which the firewall vouches for. Undefined: refused. */
  clientOf(address: string): ProxiedClient | undefined;
  interceptor: Interceptor;
}

/** Connections of one sandbox and of all, and those of them that have not said yet what they are for. */
const MAX_CONNECTIONS = { each: 1024, all: 8192 };
const MAX_UNDECIDED = { each: 256, all: 1024 };
/** A client that is silent may wait for the server to speak first (SSH, SMTP, MySQL): then the server is connected to. */
const SILENCE_MS = 200;
/** From the first byte until a ClientHello or a request's head is complete. */
const HEAD_MS = 10_000;
/** A connection on which neither side has said anything. */
const FIRST_BYTE_MS = 60_000;
/** More than this is not read again with each segment: a guest may send it byte by byte. */
const READ_AT_ONCE_BYTES = 4 * 1024;
const READ_AGAIN_MS = 100;
const CONNECT_MS = 15_000;
const KEEP_ALIVE_MS = 60_000;

/** Takes the connections that the firewall redirects, decides on each by its first bytes, and passes the allowed ones on. */
export class EgressProxy {
  readonly #options: EgressProxyOptions;
  readonly #server: Server;
  /** Open connections, by sandbox address. */
  readonly #open = new Map<string, Set<Connection>>();
  #total = 0;
  #undecided = 0;

  private constructor(options: EgressProxyOptions) {
    this.#options = options;
    this.#server = createServer({ allowHalfOpen: true, pauseOnConnect: true, noDelay: true }, (socket) =>
      this.#onConnection(socket),
    );
  }

  static async open(options: EgressProxyOptions): Promise<EgressProxy> {
    const proxy = new EgressProxy(options);
    proxy.#server.listen({ fd: options.fd });
    await once(proxy.#server, 'listening');
    return proxy;
  }

  get port(): number {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the egress proxy does not listen');
    return address.port;
  }

  get connections(): number {
    return this.#total;
  }

  /** Takes no more connections. */
  close(): void {
    this.#server.close();
  }

  /** Ends what a sandbox has open. */
  drop(address: string): void {
    for (const connection of this.#open.get(address) ?? []) connection.abort();
  }

  #onConnection(socket: Socket): void {
    const { interceptor } = this.#options;
    const source = socket.remoteAddress ?? '';
    const client = this.#options.clientOf(source);
    const { localAddress: address, localPort: port } = socket;
    socket.on('error', () => undefined);
    if (client === undefined || address === undefined || port === undefined) {
      socket.resetAndDestroy();
      return;
    }
    const own = this.#open.get(source) ?? new Set<Connection>();
    const waiting = [...own].filter(({ undecided }) => undecided).length;
    const isFull = own.size >= MAX_CONNECTIONS.each || this.#total >= MAX_CONNECTIONS.all;
    if (isFull || waiting >= MAX_UNDECIDED.each || this.#undecided >= MAX_UNDECIDED.all) {
      client.deny({ protocol: 'tcp', address, port, reason: 'too_many' });
      socket.resetAndDestroy();
      return;
    }
    this.#open.set(source, own);
    this.#total += 1;
    this.#undecided += 1;
    const connection = new Connection(socket, { client, address, port, interceptor }, () => {
      this.#undecided -= 1;
    });
    own.add(connection);
    socket.once('close', () => {
      connection.decided();
      own.delete(connection);
      this.#total -= 1;
      if (own.size === 0 && this.#open.get(source) === own) this.#open.delete(source);
    });
    connection.start();
  }
}

interface Target {
  client: ProxiedClient;
  address: string;
  port: number;
  interceptor: Interceptor;
}

/** One connection of a guest: read until it is clear what it is for, then passed on, handed over or refused. */
class Connection {
  undecided = true;
  readonly #socket: Socket;
  readonly #target: Target;
  readonly #onDecided: () => void;
  #chunks: Buffer[] = [];
  #held = 0;
  #ended = false;
  #judging = false;
  #lookLater: NodeJS.Timeout | undefined;
  #timer: NodeJS.Timeout | undefined;
  #upstream: Socket | undefined;

  constructor(socket: Socket, target: Target, onDecided: () => void) {
    this.#socket = socket;
    this.#target = target;
    this.#onDecided = onDecided;
  }

  start(): void {
    const socket = this.#socket;
    socket.setKeepAlive(true, KEEP_ALIVE_MS);
    socket.on('error', this.abort);
    socket.on('data', this.#onData);
    socket.once('end', this.#onEnd);
    socket.once('close', this.#onClose);
    this.#timer = setTimeout(() => this.#onSilence(), SILENCE_MS);
    socket.resume();
  }

  readonly abort = (): void => {
    clearTimeout(this.#timer);
    for (const socket of [this.#socket, this.#upstream])
      if (socket !== undefined && !socket.destroyed) socket.resetAndDestroy();
  };

  /** It counts as decided from now on. */
  decided(): void {
    if (!this.undecided) return;
    this.undecided = false;
    clearTimeout(this.#timer);
    this.#onDecided();
  }

  readonly #onClose = (): void => {
    clearTimeout(this.#timer);
    clearTimeout(this.#lookLater);
    this.#upstream?.destroy();
  };

  readonly #onData = (chunk: Buffer): void => {
    if (this.#held === 0) {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#refuse({ reason: 'unreadable' }), HEAD_MS);
    }
    this.#chunks.push(chunk);
    this.#held += chunk.length;
    if (this.#judging || this.#lookLater !== undefined) return;
    const isAgain = this.#held - chunk.length > READ_AT_ONCE_BYTES;
    if (!isAgain) return this.#look();
    this.#lookLater = setTimeout(() => {
      this.#lookLater = undefined;
      if (!this.#judging && this.undecided) this.#look();
    }, READ_AGAIN_MS);
  };

  readonly #onEnd = (): void => {
    this.#ended = true;
    if (!this.#judging && this.undecided) this.#look();
  };

  #look(): void {
    const bytes = Buffer.concat(this.#chunks, this.#held);
    this.#chunks = [bytes];
    const first = readFirstBytes(bytes);
    if (first.type === 'more' && !this.#ended) return;
    // A half of a request that ends there is not one of another protocol.
    this.#judge(first.type === 'more' && this.#held > 0 ? { type: 'invalid' } : first);
  }

  #judge(first: FirstBytes): void {
    this.#judging = true;
    this.#socket.pause();
    const { client, address, port, interceptor } = this.#target;
    decide(client, address, first).then(
      (decision) => {
        if (this.#socket.destroyed) return;
        if (!decision.allow) return this.#refuse(decision);
        const { host, only = false } = decision;
        const bytes = Buffer.concat(this.#chunks, this.#held);
        this.#leave();
        if (host === undefined || !interceptor.wants(client.vmId, host))
          return this.#pass(bytes, first.type === 'http' && only ? host : undefined);
        this.#upstream?.destroy();
        const tls = first.type === 'tls';
        interceptor.intercept({
          client: this.#socket,
          firstBytes: bytes,
          vmId: client.vmId,
          host,
          tls,
          address,
          port,
        });
      },
      () => this.abort(),
    );
  }

  /** What reads its bytes next has the socket for itself. */
  #leave(): void {
    this.decided();
    this.#socket.off('data', this.#onData);
    this.#socket.off('end', this.#onEnd);
    this.#chunks = [];
  }

  #refuse({ reason, name }: { reason: Denial['reason']; name?: string }): void {
    const { client, address, port } = this.#target;
    client.deny({ protocol: 'tcp', address, port, reason, ...(name === undefined ? {} : { name }) });
    this.abort();
  }

  /** The server may be the one that speaks first. What the client says after all is judged all the same. */
  #onSilence(): void {
    this.#timer = setTimeout(this.abort, FIRST_BYTE_MS);
    const upstream = this.#connect();
    upstream.once('readable', () => {
      // The client's bytes came first, or it is over.
      if (this.#judging || this.#held > 0 || upstream.readableLength === 0) return;
      this.#judge({ type: 'other' });
    });
  }

  #connect(): Socket {
    const { address, port } = this.#target;
    const upstream = connect({ host: address, port, allowHalfOpen: true, noDelay: true });
    this.#upstream = upstream;
    upstream.setKeepAlive(true, KEEP_ALIVE_MS);
    upstream.on('error', this.abort);
    const late = setTimeout(this.abort, CONNECT_MS);
    for (const event of ['connect', 'close'] as const) upstream.once(event, () => clearTimeout(late));
    return upstream;
  }

  /** Passes on what is for this host, and refuses the connection with the first request for another. */
  #follow(host: string): Transform {
    const guard = new HttpRequestGuard(host);
    const refuse = (name: string | undefined): void =>
      this.#refuse(name === undefined ? { reason: 'unreadable' } : { reason: 'name_mismatch', name });
    return new Transform({
      transform(chunk: Buffer, _encoding, done) {
        const answer = guard.push(chunk);
        if ('refuse' in answer) return refuse(answer.refuse);
        for (const part of answer.pass) this.push(part);
        done();
      },
    });
  }

  /** @param host the only one that requests of an HTTP connection may be for */
  #pass(bytes: Buffer, host?: string): void {
    const upstream = this.#upstream ?? this.#connect();
    if (upstream.destroyed) return this.abort();
    upstream.removeAllListeners('readable');
    const join = (): void => {
      const through = host === undefined ? undefined : this.#follow(host);
      if (bytes.length > 0) (through ?? upstream).write(bytes);
      splice(this.#socket, upstream, this.abort, through);
      // An end that was seen already is not told again.
      if (this.#socket.readableEnded) (through ?? upstream).end();
    };
    if (upstream.connecting) upstream.once('connect', join);
    else join();
  }
}
