/**
 * The data server for other machines where this one accepts no connections: the runner opens them, to gateways and control servers that
 * have asked for it. Which side has opened it makes no difference: they are the clients of TLS, and send the requests.
 */
import type { Server as HttpServer } from 'node:http';
import { connect, type Socket } from 'node:net';
import type { Server as TlsServer, TLSSocket } from 'node:tls';
import { reversePreface } from '@releap/certificates/hosts';
import type { Logger } from 'pino';
import { type DataCertificate, dataTls, HANDSHAKE_MS } from './tls-listener.ts';

export interface ReverseDialerOptions {
  runnerId: string;
  certificate: DataCertificate;
  /** Of the control plane: stands for an address without a host. */
  controlHost: string;
  log: Logger;
  backoffMs?: { min: number; max: number };
  giveUpMs?: number;
}

/** Connections without a request that are kept open to each. */
const IDLE_MIN = 4;
/** Where all were taken at once, twice as many are opened, up to this. */
const IDLE_MAX = 64;
/** As many as of a listener. */
const OPEN_MAX = 20_000;
/** Gateways and control servers. */
const PLACES_MAX = 256;
const BACKOFF = { min: 100, max: 5_000 };
/** A place where nothing answers for so long is forgotten, until it asks again. */
const GIVE_UP_MS = 120_000;
const KEEP_ALIVE_MS = 30_000;
const ADDRESS = /^(?<host>|\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+):(?<port>\d{1,5})$/;

export class ReverseDialer {
  readonly #options: ReverseDialerOptions;
  readonly #places = new Map<string, Place>();
  #http: HttpServer | undefined;

  constructor(options: ReverseDialerOptions) {
    this.#options = options;
  }

  /** @param http takes the connections over, with their first request */
  serve(http: HttpServer): void {
    this.#http = http;
  }

  /** A process at this address needs connections. Repeating it changes nothing. @param address `host:port` or `:port` */
  dial(address: string): void {
    const { controlHost, log } = this.#options;
    const { host, port } = ADDRESS.exec(address)?.groups ?? {};
    if (this.#http === undefined || host === undefined) return;
    let place = this.#places.get(address);
    if (place === undefined) {
      if (this.#places.size >= PLACES_MAX) {
        log.warn({ address }, 'too many gateways and control servers ask for connections');
        return;
      }
      const where = { host: (host === '' ? controlHost : host).replace(/^\[|\]$/g, ''), port: Number(port) };
      place = new Place(where, this.#http, this.#options, () => this.#places.delete(address));
      this.#places.set(address, place);
    }
    place.wanted();
  }

  close(): void {
    for (const place of this.#places.values()) place.close();
    this.#places.clear();
  }
}

/** Connections to one address. */
class Place {
  readonly #where: { host: string; port: number };
  readonly #options: ReverseDialerOptions;
  readonly #tls: TlsServer;
  readonly #forget: () => void;
  /** All that are open, and those of them that wait for a request. */
  readonly #open = new Set<Socket>();
  readonly #idle = new Set<TLSSocket>();
  /** Without a handshake yet. */
  readonly #opening = new Set<Socket>();
  #target = IDLE_MIN;
  #failures = 0;
  #answeredAt = performance.now();
  #retry: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor(
    where: { host: string; port: number },
    http: HttpServer,
    options: ReverseDialerOptions,
    forget: () => void,
  ) {
    this.#where = where;
    this.#options = options;
    this.#forget = forget;
    const ready = (socket: TLSSocket): void => this.#ready(socket, http);
    this.#tls = dataTls(options.certificate, HANDSHAKE_MS, ready, options.log);
  }

  /** A request waits there. */
  wanted(): void {
    this.#answeredAt = performance.now();
    this.#failures = 0;
    if (this.#opening.size === 0) this.#fill();
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#retry);
    for (const socket of this.#open) socket.destroy();
  }

  #fill(): void {
    clearTimeout(this.#retry);
    this.#retry = undefined;
    // The handshake needs it; the link requests it.
    if (this.#isClosed || this.#options.certificate.current === undefined) return;
    while (this.#idle.size + this.#opening.size < this.#target && this.#open.size < OPEN_MAX) this.#connect();
  }

  #connect(): void {
    const socket = connect({
      ...this.#where,
      allowHalfOpen: true,
      noDelay: true,
      keepAlive: true,
      keepAliveInitialDelay: KEEP_ALIVE_MS,
      // Of the connection alone.
      timeout: HANDSHAKE_MS,
    });
    this.#open.add(socket);
    this.#opening.add(socket);
    socket.once('timeout', () => socket.destroy());
    socket.once('connect', () => {
      socket.setTimeout(0);
      socket.write(reversePreface(this.#options.runnerId));
      this.#tls.emit('connection', socket);
    });
    socket.on('error', (error) => this.#options.log.debug({ err: error, ...this.#where }, 'no connection'));
    socket.once('close', () => {
      this.#open.delete(socket);
      if (this.#opening.delete(socket)) this.#failed();
    });
  }

  #failed(): void {
    const { backoffMs = BACKOFF, giveUpMs = GIVE_UP_MS, log } = this.#options;
    if (this.#isClosed || this.#retry !== undefined) return;
    if (this.#open.size === 0 && performance.now() - this.#answeredAt > giveUpMs) {
      log.info(this.#where, 'no connections are kept open to a gateway or control server that has gone');
      this.#forget();
      this.close();
      return;
    }
    const delay = Math.min(backoffMs.min * 2 ** this.#failures++, backoffMs.max);
    this.#retry = setTimeout(() => this.#fill(), delay).unref();
  }

  #ready(socket: TLSSocket, http: HttpServer): void {
    const raw = [...this.#opening].find(({ localPort }) => localPort === socket.localPort);
    if (raw !== undefined) this.#opening.delete(raw);
    this.#failures = 0;
    this.#answeredAt = performance.now();
    this.#idle.add(socket);
    const lost = (): void => {
      socket.off('readable', look);
      if (!this.#idle.delete(socket)) return;
      socket.destroy();
      // It has waited for long, or the other side has ended.
      this.#target = Math.max(IDLE_MIN, Math.floor(this.#target / 2));
      this.#answeredAt = performance.now();
      this.#failed();
    };
    const look = (): void => {
      const first = socket.read() as Buffer | null;
      if (first === null) return;
      socket.off('readable', look).off('end', lost).off('close', lost);
      this.#idle.delete(socket);
      socket.unshift(first);
      http.emit('connection', socket);
      if (this.#idle.size === 0) this.#target = Math.min(this.#target * 2, IDLE_MAX);
      this.#fill();
    };
    socket.on('error', () => undefined);
    socket.on('readable', look).on('end', lost).on('close', lost);
    look();
  }
}
