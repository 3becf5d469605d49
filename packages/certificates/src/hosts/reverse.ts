/**
 * Connections to hosts that accept none: the runner opens them, to each gateway and control server that has asked for it over the control
 * plane. Their first bytes name the runner. From there on all is as if they had been opened from here: this side is the client of TLS, and
 * the certificate of the other one must name that runner. Each serves as one connection of `DataHosts`.
 */
import type { Socket } from 'node:net';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { isUuid } from '@releap/contract/ids';
import type { Logger } from 'pino';
import type { HostCertificate } from './host-certificate.ts';
import { hostName } from './names.ts';
import { opened, unreachable } from './opened.ts';

/** The `data_url` of such hosts. */
export const REVERSE_URL = 'reverse:';
/** The first byte is neither that of TLS nor of HTTP; the last one is the version. */
const MAGIC = Buffer.from('\0RLP\u0001', 'latin1');
const PREFACE_BYTES = MAGIC.length + 16;
export const REVERSE_FIRST_BYTE = MAGIC[0];

const HANDSHAKE_MS = 10_000;
/** Longer than the way over the control plane to the runner, and its handshake. */
const WAIT_MS = 10_000;
/** How often the runner is asked while a request waits. */
const ASK_MS = 1_000;
/** Then the runner opens another one, and shows its present certificate. */
const IDLE_MS = 10 * 60_000;
const KEEP_ALIVE_MS = 30_000;
const IDLE_MAX = { each: 128, all: 20_000 };
/** Connections that have not shown a certificate yet. */
const PENDING_MAX = { each: 64, all: 512 };

export interface ReverseOptions {
  /** Shown to runners. */
  certificate: Pick<HostCertificate, 'get'>;
  /** Has a runner open connections to this address of this process; nothing is known of the outcome. */
  ask: (runnerId: string, address: string) => void;
  log: Logger;
  waitMs?: number;
  idleMs?: number;
}

interface Waiting {
  resolve: (socket: Socket) => void;
  reject: (error: Error) => void;
}

interface OfRunner {
  idle: Set<TLSSocket>;
  waiting: Set<Waiting>;
  asking: NodeJS.Timeout | undefined;
}

export class ReverseConnections {
  readonly #options: ReverseOptions;
  readonly #runners = new Map<string, OfRunner>();
  /** Connections without a verified runner, and their number by address. */
  readonly #pending = new Set<Socket>();
  readonly #pendingOf = new Map<string, number>();
  /** Of idle connections: what ends the watch over them. */
  readonly #releases = new WeakMap<TLSSocket, () => void>();
  #idle = 0;
  #address: string | undefined;

  constructor(options: ReverseOptions) {
    this.#options = options;
  }

  /** @param address `host:port`, or `:port` of the machine of the control plane */
  listensAt(address: string): void {
    this.#address = address;
  }

  /** A connection of a runner, of which nothing was read yet. */
  accept(socket: Socket): void {
    const address = socket.remoteAddress ?? '';
    const ofAddress = this.#pendingOf.get(address) ?? 0;
    socket.on('error', () => undefined);
    if (this.#pending.size >= PENDING_MAX.all || ofAddress >= PENDING_MAX.each) {
      socket.destroy();
      return;
    }
    this.#pending.add(socket);
    this.#pendingOf.set(address, ofAddress + 1);
    const settle = (): void => {
      if (!this.#pending.delete(socket)) return;
      const left = (this.#pendingOf.get(address) ?? 1) - 1;
      if (left === 0) this.#pendingOf.delete(address);
      else this.#pendingOf.set(address, left);
    };
    socket.once('close', settle);
    this.#verified(socket)
      .then(({ runnerId, tls }) => this.#offer(runnerId, tls))
      .catch((error: unknown) => {
        this.#options.log.debug(
          { err: error, address },
          'a connection is not one of a host of this deployment',
        );
        socket.destroy();
      })
      .finally(settle);
  }

  /** A connection to this runner, for one user. @throws when it opens none in time */
  async take(runnerId: string, allowHalfOpen: boolean): Promise<Socket> {
    const { waitMs = WAIT_MS } = this.#options;
    if (this.#address === undefined)
      throw unreachable(`host ${runnerId} accepts no connections, and this process none of hosts`);
    const runner = this.#of(runnerId);
    const [idle] = runner.idle;
    if (idle !== undefined) {
      this.#release(runner, idle);
      idle.allowHalfOpen = allowHalfOpen;
      return idle;
    }
    const { promise, ...waiting } = Promise.withResolvers<Socket>();
    const timer = setTimeout(
      () => waiting.reject(unreachable(`host ${runnerId} has opened no connection within ${waitMs} ms`)),
      waitMs,
    );
    runner.waiting.add(waiting);
    this.#ask(runnerId, runner);
    try {
      const socket = await promise;
      socket.allowHalfOpen = allowHalfOpen;
      return socket;
    } finally {
      clearTimeout(timer);
      runner.waiting.delete(waiting);
      this.#forgetUnused(runnerId, runner);
    }
  }

  close(): void {
    for (const socket of this.#pending) socket.destroy();
    for (const { idle, waiting, asking } of this.#runners.values()) {
      clearTimeout(asking);
      for (const one of waiting) one.reject(unreachable('the process is to end'));
      for (const socket of idle) socket.destroy();
    }
  }

  async #verified(socket: Socket): Promise<{ runnerId: string; tls: TLSSocket }> {
    const preface = await firstBytes(socket, PREFACE_BYTES, HANDSHAKE_MS);
    const runnerId = runnerOf(preface);
    if (runnerId === undefined) throw new Error('it names no runner');
    const { context } = await this.#options.certificate.get();
    const tls = connectTls({
      socket,
      servername: hostName({ role: 'runner', id: runnerId }),
      secureContext: context,
      ALPNProtocols: ['http/1.1'],
    });
    socket.setNoDelay(true).setKeepAlive(true, KEEP_ALIVE_MS);
    await opened(tls, 'secureConnect', HANDSHAKE_MS);
    return { runnerId, tls };
  }

  #offer(runnerId: string, socket: TLSSocket): void {
    const runner = this.#of(runnerId);
    const [first] = runner.waiting;
    if (first !== undefined) {
      runner.waiting.delete(first);
      first.resolve(socket);
      return;
    }
    if (runner.idle.size >= IDLE_MAX.each || this.#idle >= IDLE_MAX.all) {
      socket.destroy();
      return;
    }
    runner.idle.add(socket);
    this.#idle++;
    const end = (): void => void socket.destroy();
    const timer = setTimeout(end, this.#options.idleMs ?? IDLE_MS).unref();
    // Nothing is to arrive; without reading, its end would not be noticed.
    const look = (): void => {
      if (socket.read() !== null) end();
    };
    const lost = (): void => this.#release(runner, socket);
    socket.on('readable', look).on('end', end).on('close', lost);
    this.#releases.set(socket, () => {
      clearTimeout(timer);
      socket.off('readable', look).off('end', end).off('close', lost);
    });
  }

  #release(runner: OfRunner, socket: TLSSocket): void {
    if (!runner.idle.delete(socket)) return;
    this.#idle--;
    this.#releases.get(socket)?.();
  }

  #of(runnerId: string): OfRunner {
    let runner = this.#runners.get(runnerId);
    if (runner === undefined) {
      runner = { idle: new Set(), waiting: new Set(), asking: undefined };
      this.#runners.set(runnerId, runner);
    }
    return runner;
  }

  #ask(runnerId: string, runner: OfRunner): void {
    if (runner.asking !== undefined || this.#address === undefined) return;
    this.#options.ask(runnerId, this.#address);
    runner.asking = setTimeout(() => {
      runner.asking = undefined;
      if (runner.waiting.size > 0) this.#ask(runnerId, runner);
      else this.#forgetUnused(runnerId, runner);
    }, ASK_MS);
    runner.asking.unref();
  }

  #forgetUnused(runnerId: string, { idle, waiting, asking }: OfRunner): void {
    if (idle.size + waiting.size === 0 && asking === undefined) this.#runners.delete(runnerId);
  }
}

/**
 * How a process is reached that listens at this URL: one that listens at all addresses is on the machine of the control plane.
 * @param host as it was configured
 */
export function reverseAddress(url: string, host: string | undefined): string {
  const { hostname, port } = new URL(url);
  return `${host === '0.0.0.0' || host === '::' ? '' : hostname}:${port}`;
}

/** What a runner sends first on a connection that it opens. */
export const reversePreface = (runnerId: string): Buffer =>
  Buffer.concat([MAGIC, Buffer.from(runnerId.replaceAll('-', ''), 'hex')]);

function runnerOf(preface: Buffer): string | undefined {
  if (!preface.subarray(0, MAGIC.length).equals(MAGIC)) return undefined;
  const hex = preface.toString('hex', MAGIC.length);
  const id = hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
  return isUuid(id) ? id : undefined;
}

/** @throws when they do not arrive in time; the socket is destroyed then */
function firstBytes(socket: Socket, count: number, ms: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => socket.destroy(), ms);
    const settle = (): void => {
      clearTimeout(timer);
      socket.off('readable', look).off('close', fail).off('end', fail);
    };
    const fail = (): void => {
      settle();
      socket.destroy();
      reject(new Error('it was closed before it named a runner'));
    };
    const look = (): void => {
      const bytes = socket.read(count) as Buffer | null;
      if (bytes === null) return;
      settle();
      if (bytes.length === count) resolve(bytes);
      else fail();
    };
    socket.on('readable', look).on('close', fail).on('end', fail);
    look();
  });
}
