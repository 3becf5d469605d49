/** The queues and instances of all functions that are called through this gateway. */
import {
  ApiError,
  badGateway,
  FairShare,
  type GatewayFunction,
  HANDLER_LISTEN_MS,
  NotTriedYet,
  overloaded,
  QuotaExceeded,
  unavailable,
} from '@releap/contract';
import type { Logger } from 'pino';
import type { InstanceLease, InstanceLeases } from '../control/instance-leases.ts';
import { AddressHolds } from '../engine/address-holds.ts';
import { EndpointPools } from '../http/endpoints.ts';
import { Instance } from './instance.ts';
import { type InstanceFailure, type InstanceState, type RequestEnd, VersionQueue } from './version-queue.ts';

/** How often what depends on the time alone is looked at. */
const TICK_MS = 100;
/** How long a connection must stay open that shows that an instance still serves. */
const SETTLE_MS = 100;
/**
 * How long an instance computes at most after its last request: a handler may finish what it does after an answer, and a function that
 * works for 100 ms of each second is never frozen. Longer, and every call would buy more time that is not paid.
 */
const GRACE_MS = 1_000;
/** Of a thaw: a runner answers at once, unless it restarts. */
const RUNNER_TIMEOUTS = { connectMs: 2_000, headersMs: 5_000, bodyMs: 5_000 };
/** Of a 429. */
const RETRY_AFTER_SECS = 5;

export interface DispatcherLimits {
  /** How long a request waits for an instance. */
  queueMs: number;
  /** Most requests that are open, whose places organizations share. */
  calls: number;
  /** Most requests that wait, of one version and of all, whose places organizations share. */
  waitingOfVersion: number;
  waiting: number;
  /** How long the handler of a new instance may take until it listens. */
  listenMs: number;
  /** How long an instance whose connection broke may take until it accepts one again. */
  checkMs: number;
  /** How long a frozen instance may take until it runs again. */
  thawMs: number;
}

export const DISPATCHER_LIMITS: DispatcherLimits = {
  queueMs: 30_000,
  calls: 10_000,
  waitingOfVersion: 2_000,
  waiting: 10_000,
  listenMs: HANDLER_LISTEN_MS,
  checkMs: 5_000,
  thawMs: 5_000,
};

const INSTANCE_STATES = [
  'starting',
  'serving',
  'frozen',
  'ending',
] as const satisfies readonly InstanceState[];

export interface DispatcherLoad {
  /** Requests that wait for an instance. */
  waiting: number;
  /** Requests that instances serve. */
  served: number;
  /** That this gateway has. */
  instances: Record<InstanceState, number>;
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

export interface DispatcherOptions {
  leases: Pick<InstanceLeases, 'acquire'>;
  limits: DispatcherLimits;
  log: Logger;
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

export class Dispatcher {
  readonly #options: DispatcherOptions;
  readonly #holds = new AddressHolds(() => true);
  readonly #runners = new EndpointPools(RUNNER_TIMEOUTS);
  readonly #versions = new Map<string, Version>();
  #ticker: NodeJS.Timeout | undefined;
  /** Requests that are open, by organization: each is a connection of the gateway. */
  readonly #calls: FairShare<string>;
  /** Of these, the ones that wait. */
  readonly #waiting: FairShare<string>;
  #isClosed = false;
  #isDraining = false;

  constructor(options: DispatcherOptions) {
    this.#options = options;
    this.#calls = new FairShare(options.limits.calls);
    this.#waiting = new FairShare(options.limits.waiting);
  }

  /** Of all versions. */
  load(): DispatcherLoad {
    const load = {
      waiting: this.#waiting.total,
      served: 0,
      instances: { starting: 0, serving: 0, frozen: 0, ending: 0 },
    };
    for (const version of this.#versions.values()) {
      const { served, instances } = version.load();
      load.served += served;
      for (const state of INSTANCE_STATES) load.instances[state] += instances[state];
    }
    return load;
  }

  /** Versions with requests or instances. */
  get size(): number {
    return this.#versions.size;
  }

  /**
   * Waits for an instance.
   * @param signal aborted when its client disconnects
   * @param isPatient its time in the queue counts only while there is no instance, and the version is not being tried
   * @throws ApiError 402, 429, 502, 503; VersionGone; the signal's reason
   */
  async acquire(called: GatewayFunction, signal: AbortSignal, isPatient: boolean): Promise<Slot> {
    signal.throwIfAborted();
    if (this.#isClosed || (this.#isDraining && this.#versions.get(called.version_id)?.isServing !== true))
      throw unavailable('the gateway is stopping; try again');
    const version = this.#versionOf(called);
    const owner = called.org_id ?? called.project_id;
    if (!this.#calls.mayTake(owner)) throw overloaded('too many calls are open already', RETRY_AFTER_SECS);
    this.#calls.take(owner);
    try {
      const slot = await this.#acquire(version, owner, signal, isPatient);
      return {
        ...slot,
        done: (end, servedMs) => {
          this.#calls.release(owner);
          slot.done(end, servedMs);
        },
      };
    } catch (error) {
      this.#calls.release(owner);
      throw error;
    }
  }

  async #acquire(version: Version, owner: string, signal: AbortSignal, isPatient: boolean): Promise<Slot> {
    // One that waits for nothing takes no place.
    if (version.hasCapacity) return await version.acquire(signal, isPatient);
    if (version.waiting >= this.#options.limits.waitingOfVersion || !this.#waiting.mayTake(owner))
      throw overloaded('too many calls wait for an instance already', RETRY_AFTER_SECS);
    this.#waiting.take(owner);
    try {
      return await version.acquire(signal, isPatient);
    } finally {
      this.#waiting.release(owner);
    }
  }

  pressure(functionIds: readonly string[]): void {
    const ids = new Set(functionIds);
    for (const version of this.#versions.values()) if (ids.has(version.called.id)) version.giveUpIdle();
  }

  /** These instances (UUIDs of sandboxes) get no further requests, and end with the last one that they serve. */
  retire(instances: readonly string[]): void {
    if (instances.length === 0) return;
    const ids = new Set(instances);
    for (const version of this.#versions.values()) version.retire(ids);
  }

  /** Ends up to `most` of these instances (UUIDs of sandboxes) that are frozen, those that have served nothing for longest first. */
  giveUpIdle(instances: readonly string[], most: number): void {
    const ids = new Set(instances);
    const frozen = [...this.#versions.values()].flatMap((version) =>
      version.frozen(ids).map(({ id, idleSince }) => ({ id, idleSince, version })),
    );
    const oldest = frozen.toSorted((one, other) => one.idleSince - other.idleSince).slice(0, most);
    for (const { version, id } of oldest) version.retire(new Set([id]));
  }

  /** No version gets its first instance any more. */
  drain(): void {
    this.#isDraining = true;
  }

  close(): void {
    this.#isClosed = true;
    clearInterval(this.#ticker);
    for (const version of this.#versions.values()) version.close(unavailable('the gateway is stopping'));
    this.#versions.clear();
    void this.#runners.destroy();
  }

  #versionOf(called: GatewayFunction): Version {
    const known = this.#versions.get(called.version_id);
    if (known !== undefined) {
      known.configure(called);
      return known;
    }
    for (const other of this.#versions.values()) {
      if (other.called.id === called.id && other.called.version < called.version) other.supersede();
    }
    const version = new Version(called, { ...this.#options, holds: this.#holds, runners: this.#runners });
    this.#versions.set(called.version_id, version);
    this.#ticker ??= setInterval(() => this.#tick(), TICK_MS).unref();
    return version;
  }

  #tick(): void {
    for (const [id, version] of this.#versions) {
      version.tick();
      if (version.isEmpty) this.#versions.delete(id);
    }
    if (this.#versions.size > 0) return;
    clearInterval(this.#ticker);
    this.#ticker = undefined;
  }
}

interface Running {
  readonly stopped: AbortController;
  lease?: InstanceLease;
  instance?: Instance;
}

type VersionOptions = DispatcherOptions & { holds: AddressHolds; runners: EndpointPools };

/** One version of a function: its queue, and what the queue decides carried out. */
class Version {
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
