import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { badGateway } from '@releap/contract';
import type { InstanceLease } from '../control/instance-leases.ts';
import type { AddressHold, AddressHolds } from '../engine/address-holds.ts';
import type { EndpointPools } from '../http/endpoints.ts';
import { openPortStream } from '../ports/port-stream.ts';
import { HandlerPool, KEEP_ALIVE_MS } from './handler-pool.ts';
import { IdleGuest } from './idle-guest.ts';

const CONNECT_MS = 5_000;
const PROBE_MIN_MS = 10;
const PROBE_MAX_MS = 250;
/** How long its address is tried at the shortest interval, which costs 0.2 ms each: most handlers listen by then. */
const PROBE_OFTEN_MS = 2_000;
/** While it starts, its loopback interface is tried less often: that is a request to the agent in the guest. */
const INSIDE_FIRST_MS = 50;
const INSIDE_EVERY_MS = 250;

export interface InstanceOptions {
  lease: InstanceLease;
  /** Where the handler listens. */
  port: number;
  holds: AddressHolds;
  /** Connections to runners. */
  runners: EndpointPools;
  thawMs: number;
}

/** A sandbox that serves a version, and the kept-alive connections to its handler. */
export class Instance {
  readonly pool: HandlerPool;
  readonly idle: IdleGuest;
  readonly #options: InstanceOptions;
  /** Its address, when it runs on this machine and its runner lets this process connect. */
  #hold: AddressHold | undefined;
  /** The connection of the probe: the first request has it. */
  #spare: Socket | undefined;
  #isClosed = false;

  constructor(options: InstanceOptions) {
    this.#options = options;
    this.idle = new IdleGuest(options);
    this.pool = new HandlerPool(async () => this.#takeSpare() ?? (await this.#connect(true)));
  }

  /**
   * Waits until the handler accepts connections.
   * @param settleMs how long the connection must stay open: a handler that dies may leave its port to a child for a moment
   * @throws ApiError 502 the last refusal, at the deadline; the signal's reason
   */
  async waitUntilReady(timeoutMs: number, signal: AbortSignal, settleMs = 0): Promise<void> {
    const startedAt = performance.now();
    const deadline = startedAt + timeoutMs;
    let insideAt = startedAt + Math.min(INSIDE_FIRST_MS, timeoutMs);
    let pauseMs = PROBE_MIN_MS;
    for (;;) {
      signal.throwIfAborted();
      const isInside = performance.now() >= insideAt;
      if (isInside) insideAt = performance.now() + INSIDE_EVERY_MS;
      try {
        const socket = await this.#connect(isInside);
        if (settleMs > 0) await staysOpen(socket, settleMs);
        this.#keepSpare(socket);
        return;
      } catch (error) {
        if (performance.now() > deadline && isInside) throw error;
        // The last attempt is one from inside.
        if (performance.now() + pauseMs > deadline) insideAt = 0;
      }
      await sleep(pauseMs, undefined, { signal });
      // Without its address every attempt is a request to the agent.
      if (this.#hold === undefined || performance.now() - startedAt > PROBE_OFTEN_MS)
        pauseMs = Math.min(pauseMs * 2, PROBE_MAX_MS);
    }
  }

  /** Ends idle connections, and after `graceMs` those of requests. */
  close(graceMs: number): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.idle.close();
    this.#hold?.release();
    this.#takeSpare()?.destroy();
    const timer = setTimeout(() => void this.pool.destroy(), graceMs).unref();
    void this.pool.close().then(() => clearTimeout(timer));
  }

  /** @param alsoInside tries the guest's loopback interface when its address refuses */
  async #connect(alsoInside: boolean): Promise<Socket> {
    const { lease, port } = this.#options;
    const address = await this.#address();
    if (address === undefined) return await openPortStream(lease, port);
    try {
      return await connectTo(address, port);
    } catch (error) {
      if (!alsoInside) throw error;
      return await openPortStream(lease, port);
    }
  }

  async #address(): Promise<string | undefined> {
    if (this.#hold?.lost.aborted === true) {
      this.#hold.release();
      this.#hold = undefined;
    }
    if (this.#hold === undefined) {
      const hold = await this.#options.holds.get(this.#options.lease);
      if (hold === undefined) return undefined;
      // Another connection may have got it meanwhile.
      if (this.#isClosed || this.#hold !== undefined) hold.release();
      else this.#hold = hold;
    }
    return this.#hold?.address;
  }

  #keepSpare(socket: Socket): void {
    this.#takeSpare()?.destroy();
    if (this.#isClosed) return void socket.destroy();
    this.#spare = socket;
    // It must not be idle for longer than those of the pool.
    const timer = setTimeout(() => {
      if (this.#spare === socket) this.#takeSpare()?.destroy();
    }, KEEP_ALIVE_MS).unref();
    socket.once('close', () => {
      clearTimeout(timer);
      if (this.#spare === socket) this.#spare = undefined;
    });
  }

  #takeSpare(): Socket | undefined {
    const socket = this.#spare;
    this.#spare = undefined;
    return socket?.destroyed === true ? undefined : socket;
  }
}

/** @throws when the peer closes it meanwhile */
async function staysOpen(socket: Socket, ms: number): Promise<void> {
  const closed = Promise.withResolvers<never>();
  const onEnd = (): void => {
    socket.destroy();
    closed.reject(badGateway('the handler closed the connection at once', 'handler_failed'));
  };
  socket.once('end', onEnd).once('close', onEnd).resume();
  try {
    await Promise.race([closed.promise, sleep(ms)]);
  } finally {
    socket.off('end', onEnd).off('close', onEnd).pause();
  }
}

function connectTo(host: string, port: number): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host, port, noDelay: true, keepAlive: true, keepAliveInitialDelay: 60_000 });
    const timer = setTimeout(() => socket.destroy(new Error('no answer')), CONNECT_MS);
    socket.once('error', reject);
    socket.once('close', () => clearTimeout(timer));
    socket.once('connect', () => {
      clearTimeout(timer);
      socket.off('error', reject);
      // Until its user listens.
      socket.on('error', () => undefined);
      resolve(socket);
    });
  });
}
