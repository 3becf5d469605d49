/** One version of a function: its queue and its instances. */
import {
  ApiError,
  badGateway,
  type GatewayFunction,
  NotTriedYet,
  overloaded,
  QuotaExceeded,
  unavailable,
} from '@releap/contract';
import type { Logger } from 'pino';
import type { InstanceLease, InstanceLeases } from '../control/instance-leases.ts';
import type { AddressHolds } from '../engine/address-holds.ts';
import type { EndpointPools } from '../http/endpoints.ts';
import { Instance } from './instance.ts';
import { type InstanceFailure, type RequestEnd, VersionQueue } from './version-queue.ts';

/** How long a connection must stay open that shows that an instance still serves. */
const SETTLE_MS = 100;
/**
 * How long an instance computes at most after its last request: a handler may finish what it does after an answer, and a function that
 * works for 100 ms of each second is never frozen. Longer, and every call would buy more time that is not paid.
 */
const GRACE_MS = 1_000;
/** Of a 429. */
export const RETRY_AFTER_SECS = 5;

export interface VersionLimits {
  /** How long a request waits for an instance. */
  queueMs: number;
  /** How long the handler of a new instance may take until it listens. */
  listenMs: number;
  /** How long an instance whose connection broke may take until it accepts one again. */
  checkMs: number;
  /** How long a frozen instance may take until it runs again. */
  thawMs: number;
}

/** An instance, for one request. */
export interface Slot {
  instance: Pick<Instance, 'pool'>;
  /** The request has waited for it to start. */
  isCold: boolean;
  /** Aborted when nothing of the function may be served any more. */
  revoked: AbortSignal;
  /** To be called once. @param servedMs what is charged for the request, in milliseconds */
  done(end: RequestEnd, servedMs: number): void;
}

/** The version is not wanted any more: there may be a newer one. */
export class VersionGone extends Error {
  readonly refusal: ApiError;

  constructor(refusal: ApiError) {
    super(refusal.message);
    this.name = 'VersionGone';
    this.refusal = refusal;
  }
}

interface Waiter {
  resolve(slot: Slot): void;
  reject(error: Error): void;
}

interface Running {
  readonly stopped: AbortController;
  lease?: InstanceLease;
  instance?: Instance;
}

export interface VersionOptions {
  leases: Pick<InstanceLeases, 'acquire'>;
  limits: VersionLimits;
  log: Logger;
  holds: AddressHolds;
  runners: EndpointPools;
}

/** One version of a function: its queue, and what the queue decides carried out. */
export class FunctionVersion {
  called: GatewayFunction;
  readonly #options: VersionOptions;
  readonly #queue: VersionQueue<Waiter>;
  readonly #running = new Map<number, Running>();
  #freezer: NodeJS.Timeout | undefined;
  /** On the monotonic clock. */
  #freezesAt = Infinity;

  constructor(called: GatewayFunction, options: VersionOptions) {
    this.called = called;
    this.#options = options;
    this.#queue = new VersionQueue<Waiter>(
      this.#config(),
      {
        start: (id) => void this.#start(id),
        send: (waiter, id, isCold) => this.#send(waiter, id, isCold),
        refuse: (waiter, error) => waiter.reject(error.status === 404 ? new VersionGone(error) : error),
        expire: (waiter, failure) => waiter.reject(this.#expired(failure)),
        stop: (id, discard) => this.#stop(id, discard),
        check: (id) =>
          void this.#reach(id, (instance, signal) =>
            instance.waitUntilReady(this.#options.limits.checkMs, signal, SETTLE_MS),
          ),
        freeze: (id) => this.#running.get(id)?.instance?.idle.freeze(),
        thaw: (id) => void this.#reach(id, (instance, signal) => instance.idle.thaw(signal)),
      },
      (id) => this.#running.get(id)?.lease?.isUsable === true,
    );
  }

  get isEmpty(): boolean {
    return this.#queue.isEmpty;
  }

  get isServing(): boolean {
    return this.#queue.isServing;
  }

  load(): ReturnType<VersionQueue<Waiter>['load']> {
    return this.#queue.load();
  }

  get waiting(): number {
    return this.#queue.waiting;
  }

  get hasCapacity(): boolean {
    return this.#queue.hasCapacity;
  }

  configure(called: GatewayFunction): void {
    const isSame = called.revision === this.called.revision;
    // An older grant may still be in use by another credential.
    if (isSame || called.revision < this.called.revision) return;
    this.called = called;
    this.#queue.configure(this.#config(), performance.now());
  }

  acquire(signal: AbortSignal, isPatient: boolean): Promise<Slot> {
    return new Promise((resolve, reject) => {
      const cancel = (): void => {
        this.#queue.cancel(ticket);
        reject(signal.reason as Error);
      };
      let isSettled = false;
      const settle = (): void => {
        isSettled = true;
        signal.removeEventListener('abort', cancel);
      };
      const waiter: Waiter = {
        resolve: (slot) => {
          settle();
          resolve(slot);
        },
        reject: (error) => {
          settle();
          reject(error);
        },
      };
      const ticket = this.#queue.submit(waiter, performance.now(), isPatient);
      if (!isSettled) signal.addEventListener('abort', cancel, { once: true });
    });
  }

  giveUpIdle(): void {
    this.#queue.giveUpIdle(performance.now());
  }

  retire(instances: ReadonlySet<string>): void {
    for (const [id, { lease }] of this.#running)
      if (lease !== undefined && instances.has(lease.vmId)) this.#queue.retire(id, performance.now());
  }

  /** Those among these instances (UUIDs of sandboxes) that are frozen, and since when they have served nothing. */
  frozen(instances: ReadonlySet<string>): { id: string; idleSince: number }[] {
    return this.#queue.frozen().flatMap(({ id, idleSince }) => {
      const vmId = this.#running.get(id)?.lease?.vmId;
      return vmId !== undefined && instances.has(vmId) ? [{ id: vmId, idleSince }] : [];
    });
  }

  supersede(): void {
    this.#queue.supersede(performance.now());
  }

  tick(): void {
    this.#queue.tick(performance.now());
  }

  close(error: ApiError): void {
    clearTimeout(this.#freezer);
    this.#queue.close(error);
  }

  #config() {
    const { max_concurrency, max_instances, scaledown_window_s } = this.called;
    return {
      concurrency: max_concurrency,
      maxInstances: max_instances,
      idleMs: scaledown_window_s * 1000,
      graceMs: GRACE_MS,
      queueMs: this.#options.limits.queueMs,
    };
  }

  async #start(id: number): Promise<void> {
    const { leases, limits, holds, runners } = this.#options;
    const running: Running = { stopped: new AbortController() };
    this.#running.set(id, running);
    const { signal } = running.stopped;
    try {
      const lease = await leases.acquire(this.called.version_id, signal);
      if (signal.aborted) return lease.release();
      running.lease = lease;
      const lost = (): void => this.#failed(id, lease.lost.reason as ApiError);
      lease.lost.addEventListener('abort', lost, { once: true });
      const instance = new Instance({ lease, port: this.called.port, holds, runners, thawMs: limits.thawMs });
      running.instance = instance;
      const ended = AbortSignal.any([signal, lease.lost]);
      // The gateway that had it before may have frozen it.
      await instance.idle.thaw(ended);
      await instance.waitUntilReady(limits.listenMs, ended);
      lease.listens();
      this.#ready(id);
    } catch (error) {
      this.#failed(id, error);
    }
  }

  #ready(id: number): void {
    this.#queue.ready(id, performance.now());
    this.#freezeAt(this.#queue.freezeAt(id));
  }

  /** At this time the grace of an instance is over, unless it serves again by then. */
  #freezeAt(at: number): void {
    if (at >= this.#freezesAt) return;
    this.#freezesAt = at;
    clearTimeout(this.#freezer);
    this.#freezer = setTimeout(
      () => {
        this.#freezesAt = Infinity;
        this.#freezeAt(this.#queue.freezeIdle(performance.now()));
      },
      Math.max(0, Math.ceil(at - performance.now())),
    ).unref();
  }

  /** Finds out whether an instance serves. @param attempt resolves when it does */
  async #reach(
    id: number,
    attempt: (instance: Instance, signal: AbortSignal) => Promise<void>,
  ): Promise<void> {
    const { instance, lease, stopped } = this.#running.get(id) ?? {};
    if (instance === undefined || lease === undefined || stopped === undefined) return;
    try {
      await attempt(instance, AbortSignal.any([stopped.signal, lease.lost]));
      this.#ready(id);
    } catch (error) {
      this.#failed(id, error);
    }
  }

  #failed(id: number, error: unknown): void {
    const running = this.#running.get(id);
    if (running === undefined || running.stopped.signal.aborted) return;
    const isStarting = running.lease === undefined;
    const refusal =
      error instanceof ApiError
        ? error
        : badGateway(`the handler cannot be reached: ${(error as Error).message}`, 'handler_failed');
    this.#options.log.debug({ err: error, version: this.called.version_id }, 'an instance failed');
    this.#queue.failed(id, performance.now(), failureOf(refusal, isStarting));
  }

  #send(waiter: Waiter, id: number, isCold: boolean): void {
    const { instance, lease } = this.#running.get(id) ?? {};
    if (instance === undefined || lease === undefined)
      throw new Error('a request was sent to an instance that is not there');
    const since = performance.now();
    waiter.resolve({
      instance,
      isCold,
      revoked: lease.lost,
      done: (end, servedMs) => {
        this.#queue.done(id, performance.now(), end, servedMs, since);
        this.#freezeAt(this.#queue.freezeAt(id));
      },
    });
  }

  #stop(id: number, discard: boolean): void {
    const running = this.#running.get(id);
    this.#running.delete(id);
    running?.lease?.release(discard);
    running?.stopped.abort(unavailable('the instance was ended'));
    running?.instance?.close(this.called.timeout_s * 1000);
  }

  /** Why a request had to wait for too long. */
  #expired(failure: InstanceFailure | undefined): ApiError {
    const seconds = this.#options.limits.queueMs / 1000;
    const placed = [...this.#running.values()].filter(({ lease }) => lease !== undefined).length;
    if (placed > this.#queue.load().instances.ending && !this.#queue.isServing)
      return badGateway(
        `nothing listens on port ${this.called.port} of the function's instance; the handler must listen there`,
        'handler_failed',
      );
    const { kind, error } = failure ?? {};
    if (error !== undefined && kind !== 'capacity' && kind !== 'untried') return error;
    const what = kind === 'untried' ? 'could serve' : 'had capacity for';
    const why = error === undefined ? this.#ending() : `: ${error.message}`;
    const message = `no instance ${what} this request within ${seconds} s${why}`;
    return error instanceof QuotaExceeded
      ? new QuotaExceeded(message, error.quota, RETRY_AFTER_SECS)
      : overloaded(message, RETRY_AFTER_SECS);
  }

  /** Whether instances that take no requests any more are all that it may have. */
  #ending(): string {
    const { max_instances: most } = this.called;
    if (most === null || this.#queue.load().instances.ending < most) return '';
    const [instances, end] =
      most === 1 ? ['its only instance', 'ends'] : [`all its ${most} instances`, 'end'];
    return `: ${instances} (max_instances) ${end} with the calls that are still served there, because the host is drained or a call has exceeded timeout_s`;
  }
}

/** @param isStarting control has refused it; otherwise the gateway could not reach it */
function failureOf(error: ApiError, isStarting: boolean): InstanceFailure {
  if (!isStarting) return { error, kind: 'retry' };
  if (error instanceof NotTriedYet) return { error, kind: 'untried' };
  if (error.status === 429) return { error, kind: 'capacity' };
  // It has lost the instance while that started, or control cannot tell.
  return { error, kind: [409, 503, 504].includes(error.status) ? 'retry' : 'final' };
}
