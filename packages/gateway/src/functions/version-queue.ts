/**
 * Decides which instance serves which request of one version of a function: the queue, the instances with their load, and when
 * instances start and stop. It has no clock and no I/O: times are milliseconds of any monotonic clock, decisions are calls of
 * `QueueActions`, which must not call back.
 */
import type { ApiError } from '@releap/contract';

export interface QueueConfig {
  /** Most requests at a time of one instance. */
  concurrency: number;
  /** Null: no bound. */
  maxInstances: number | null;
  /** How long an instance without requests is kept, in milliseconds. */
  idleMs: number;
  /** How long an instance without requests computes at most, in milliseconds. */
  graceMs: number;
  /** How long a request waits for an instance, in milliseconds. */
  queueMs: number;
}

export interface QueueActions<T> {
  /** Starts an instance: `ready` or `failed` follows, unless `stop` comes before. */
  start(instance: number): void;
  /** The request is for this instance: `done` follows. @param isCold it has waited for an instance to start */
  send(request: T, instance: number, isCold: boolean): void;
  refuse(request: T, error: ApiError): void;
  /** The request has waited too long. @param failure the newest one of a start, if there was any since an instance started */
  expire(request: T, failure: InstanceFailure | undefined): void;
  /** Ends an instance. @param discard it must not be used by another gateway either */
  stop(instance: number, discard: boolean): void;
  /** Finds out whether an instance still serves: `ready` or `failed` follows. */
  check(instance: number): void;
  /** Stops the processors of an instance that serves nothing. */
  freeze(instance: number): void;
  /** Resumes them: `ready` or `failed` follows. */
  thaw(instance: number): void;
}

/** Why an instance did not start, or ended. */
export interface InstanceFailure {
  error: ApiError;
  /**
   * `retry`: another one may do better. `capacity`: none may be started now. `untried`: nor is the version tried yet. `final`: no
   * other would start, so requests that wait for one are refused with it.
   */
  kind: 'retry' | 'capacity' | 'untried' | 'final';
}

/**
 * How a request has left its instance. `cancelled`: before the handler had answered. `broken`: its connection failed. `hung`: the
 * handler did not answer in time.
 */
export type RequestEnd = 'good' | 'cancelled' | 'broken' | 'hung';

type State =
  /** Not ready yet. */
  | 'starting'
  | 'ready'
  /** A request has failed there; it gets no others until it is known to serve. */
  | 'checked'
  /** Without requests, and its processors are stopped, or are about to be. */
  | 'frozen'
  /** Requests wait until its processors run again. */
  | 'thawing'
  /** It gets no requests any more and stops with its last one. */
  | 'draining';

/** For the operator. */
export type InstanceState = 'starting' | 'serving' | 'frozen' | 'ending';

interface Instance {
  readonly id: number;
  state: State;
  /** Requests that it serves. */
  load: number;
  idleSince: number;
  /** When it last ended a request well. */
  goodAt: number;
  /** What is charged for the request that left it last, in milliseconds; 0 if there was none since its processors run. */
  servedMs: number;
}

interface Waiting<T> {
  readonly request: T;
  readonly since: number;
  /** Waits as long as there is an instance that will serve it, or the version is being tried. */
  readonly isPatient: boolean;
}

/**
 * Instances that may start at a time: this many, as many as run, or this share of those that the waiting requests need, whichever
 * is most. A crowd must not wait until the number of instances has doubled often enough.
 */
const STARTS_MIN = 2;
const STARTS_SHARE = 4;
/**
 * An instance without requests computes for so many times what its last request is charged, and at least for a moment in which the
 * next one may come: that is unpaid, and must be no more than a multiple of what is paid.
 */
const GRACE_OF_SERVED = 10;
const GRACE_MIN_MS = 20;
/** Consecutive failed starts after which requests are refused. */
const FAILURES_MAX = 3;
const RETRY_MIN_MS = 250;
const RETRY_MAX_MS = 5_000;

export class VersionQueue<T> {
  readonly #actions: QueueActions<T>;
  #config: QueueConfig;
  /** In order of arrival. */
  readonly #waiting = new Map<number, Waiting<T>>();
  readonly #instances = new Map<number, Instance>();
  #nextTicket = 1;
  #nextInstance = 1;
  /** No start before. */
  #retryAt = -Infinity;
  #failures = 0;
  #lastFailure: InstanceFailure | undefined;
  /** When an instance last served, or will still do so once the version was tried. */
  #servedAt = -Infinity;
  /** Instances are not kept: there is a newer version. */
  #isSuperseded = false;
  readonly #isUsable: (instance: number) => boolean;

  /** @param isUsable whether requests may be sent to a ready instance at this moment */
  constructor(config: QueueConfig, actions: QueueActions<T>, isUsable: (instance: number) => boolean) {
    this.#config = config;
    this.#actions = actions;
    this.#isUsable = isUsable;
  }

  /** Whether it has neither requests nor instances. */
  get isEmpty(): boolean {
    return this.#waiting.size === 0 && this.#instances.size === 0;
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  /** Whether an instance would get a further request at once. */
  get hasCapacity(): boolean {
    return this.#waiting.size === 0 && this.#leastLoaded() !== undefined;
  }

  /** Whether an instance serves requests. */
  get isServing(): boolean {
    return [...this.#instances.values()].some(isServing);
  }

  /** Requests that its instances serve, and these by state. */
  load(): { served: number; instances: Record<InstanceState, number> } {
    const load = { served: 0, instances: { starting: 0, serving: 0, frozen: 0, ending: 0 } };
    for (const instance of this.#instances.values()) {
      const { state, load: served } = instance;
      load.served += served;
      const shown =
        state === 'draining' ? 'ending' : state === 'starting' || state === 'frozen' ? state : 'serving';
      load.instances[shown] += 1;
    }
    return load;
  }

  configure(config: QueueConfig, now: number): void {
    this.#config = config;
    this.#advance(now);
  }

  /**
   * @param isPatient its time in the queue counts only while there is no instance, and the version is not being tried
   * @returns for `cancel`
   */
  submit(request: T, now: number, isPatient = false): number {
    const ticket = this.#nextTicket++;
    this.#waiting.set(ticket, { request, since: now, isPatient });
    this.#advance(now);
    return ticket;
  }

  /** The client of a request has disconnected. Without effect once the request has left the queue. */
  cancel(ticket: number): void {
    this.#waiting.delete(ticket);
  }

  ready(id: number, now: number): void {
    const instance = this.#instances.get(id);
    if (instance === undefined || instance.state === 'draining') return;
    const isNew = instance.state === 'starting';
    instance.state = 'ready';
    instance.idleSince = now;
    instance.servedMs = 0;
    if (isNew) {
      this.#failures = 0;
      this.#lastFailure = undefined;
    }
    this.#advance(now, isNew ? instance : undefined);
  }

  /** An instance did not start, or has ended. Its requests end by themselves. */
  failed(id: number, now: number, failure: InstanceFailure): void {
    const { error, kind } = failure;
    const instance = this.#instances.get(id);
    if (instance === undefined) return;
    const isRefused = kind === 'capacity' || kind === 'untried';
    this.#instances.delete(id);
    this.#actions.stop(id, !isRefused);
    if (instance.state === 'starting') {
      this.#lastFailure = failure;
      if (kind === 'untried') this.#servedAt = now;
      if (!isRefused) this.#failures++;
      const backoff = RETRY_MIN_MS * 2 ** Math.min(this.#failures, 10);
      this.#retryAt = now + Math.min(backoff, RETRY_MAX_MS);
      const isHopeless = kind === 'final' || this.#failures >= FAILURES_MAX;
      if (isHopeless && this.#waiting.size > 0 && !this.#hasInstance()) {
        this.#failures = 0;
        this.refuseAll(error);
      }
    }
    this.#advance(now);
  }

  /**
   * A request has left its instance.
   * @param servedMs what is charged for it
   * @param since when it was sent
   */
  done(id: number, now: number, end: RequestEnd, servedMs: number, since = now): void {
    const instance = this.#instances.get(id);
    if (instance === undefined) return;
    instance.load--;
    instance.idleSince = now;
    instance.servedMs = servedMs;
    if (end === 'good') instance.goodAt = now;
    // One slow request of many is no sign that the instance hangs.
    else if (end === 'hung' && instance.goodAt <= since) instance.state = 'draining';
    else if (end === 'broken' && instance.state === 'ready') {
      instance.state = 'checked';
      this.#actions.check(id);
    }
    if (instance.state === 'draining' && instance.load === 0) this.#stop(instance, true);
    this.#advance(now);
  }

  /** Instances without requests are wanted elsewhere. */
  giveUpIdle(now: number): void {
    for (const instance of this.#instances.values()) {
      if (isIdle(instance)) this.#stop(instance, false);
    }
    this.#advance(now);
  }

  /** Instances that are frozen, and since when they have served nothing. */
  frozen(): { id: number; idleSince: number }[] {
    return [...this.#instances.values()].filter(({ state }) => state === 'frozen');
  }

  /** An instance gets no further requests, and ends with the last one that it serves. One that starts is not concerned. */
  retire(id: number, now: number): void {
    const instance = this.#instances.get(id);
    if (instance === undefined || instance.state === 'starting') return;
    if (instance.load === 0) this.#stop(instance, true);
    else instance.state = 'draining';
    this.#advance(now);
  }

  /** A newer version is current. Requests that wait are still served. */
  supersede(now: number): void {
    this.#isSuperseded = true;
    this.#advance(now);
  }

  /** Refuses all that wait. */
  refuseAll(error: ApiError): void {
    for (const [ticket, { request }] of this.#waiting) {
      this.#waiting.delete(ticket);
      this.#actions.refuse(request, error);
    }
  }

  /** Ends all instances. */
  close(error: ApiError): void {
    this.refuseAll(error);
    for (const instance of this.#instances.values()) this.#stop(instance, false);
  }

  /** To be called every now and then, for what depends on the time alone. */
  tick(now: number): void {
    this.#advance(now);
    const { queueMs, idleMs } = this.#config;
    if (this.#count('ready') > 0) this.#servedAt = now;
    for (const [ticket, { request, since, isPatient }] of this.#waiting) {
      if (now - (isPatient ? Math.max(since, this.#servedAt) : since) < queueMs) {
        // All that came later have more time.
        if (now - since < queueMs) break;
        continue;
      }
      this.#waiting.delete(ticket);
      this.#actions.expire(request, this.#lastFailure);
    }
    for (const instance of this.#instances.values()) {
      if (isIdle(instance) && now - instance.idleSince >= idleMs) this.#stop(instance, false);
    }
    this.freezeIdle(now);
  }

  /**
   * Freezes the instances whose grace is over.
   * @returns when that of the next one will be; Infinity when none waits for it
   */
  freezeIdle(now: number): number {
    let next = Infinity;
    for (const instance of this.#instances.values()) {
      const at = this.#freezeAt(instance);
      if (at > now) next = Math.min(next, at);
      else {
        instance.state = 'frozen';
        this.#actions.freeze(instance.id);
      }
    }
    return next;
  }

  /** When the grace of an instance is over; Infinity while it serves, or is frozen. */
  freezeAt(id: number): number {
    const instance = this.#instances.get(id);
    return instance === undefined ? Infinity : this.#freezeAt(instance);
  }

  #freezeAt({ state, load, idleSince, servedMs }: Instance): number {
    if (state !== 'ready' || load > 0) return Infinity;
    return idleSince + Math.min(this.#config.graceMs, Math.max(GRACE_MIN_MS, GRACE_OF_SERVED * servedMs));
  }

  #advance(now: number, started?: Instance): void {
    for (const [ticket, { request }] of this.#waiting) {
      const instance = this.#leastLoaded();
      if (instance === undefined) break;
      this.#waiting.delete(ticket);
      instance.load++;
      this.#servedAt = now;
      this.#actions.send(request, instance.id, instance === started);
    }
    if (this.#waiting.size > 0) {
      this.#thawMore();
      this.#startMore(now);
    } else this.#stopUnwanted();
  }

  /** As many as the requests that wait need, first those that have served last. */
  #thawMore(): void {
    const { concurrency } = this.#config;
    let missing = this.#waiting.size - this.#count('thawing') * concurrency;
    if (missing <= 0) return;
    const frozen = [...this.#instances.values()]
      .filter(({ id, state }) => state === 'frozen' && this.#isUsable(id))
      .sort((one, other) => other.idleSince - one.idleSince);
    for (const instance of frozen) {
      if (missing <= 0) return;
      missing -= concurrency;
      instance.state = 'thawing';
      this.#actions.thaw(instance.id);
    }
  }

  /** Of those with the same load the one that served last, so that the others are idle. */
  #leastLoaded(): Instance | undefined {
    let best: Instance | undefined;
    for (const instance of this.#instances.values()) {
      const { id, state, load, idleSince } = instance;
      if (state !== 'ready' || load >= this.#config.concurrency || !this.#isUsable(id)) continue;
      if (best === undefined || load < best.load || (load === best.load && idleSince > best.idleSince))
        best = instance;
    }
    return best;
  }

  #startMore(now: number): void {
    if (now < this.#retryAt) return;
    const { concurrency, maxInstances } = this.#config;
    const starting = this.#count('starting');
    let serving = 0;
    // What instances can take that are not usable for the moment, or will be usable in a moment.
    let spare = 0;
    for (const instance of this.#instances.values()) {
      if (!isServing(instance)) continue;
      const { id, state, load } = instance;
      serving++;
      if (state === 'thawing' || (state !== 'checked' && !this.#isUsable(id)))
        spare += Math.max(0, concurrency - load);
    }
    const wanted = Math.ceil(Math.max(0, this.#waiting.size - spare) / concurrency);
    const others = this.#instances.size - starting;
    const startsAtOnce = Math.max(STARTS_MIN, serving, Math.ceil(wanted / STARTS_SHARE));
    const most = Math.min(wanted, startsAtOnce, (maxInstances ?? Infinity) - others);
    for (let count = starting; count < most; count++) {
      const id = this.#nextInstance++;
      this.#instances.set(id, {
        id,
        state: 'starting',
        load: 0,
        idleSince: now,
        goodAt: -Infinity,
        servedMs: 0,
      });
      this.#actions.start(id);
    }
  }

  #stopUnwanted(): void {
    const most = this.#isSuperseded ? 0 : (this.#config.maxInstances ?? Infinity);
    if (this.#instances.size <= most) return;
    for (const instance of this.#instances.values()) {
      if (this.#instances.size <= most) return;
      if (instance.load === 0 && instance.state !== 'draining') this.#stop(instance, false);
    }
  }

  #stop(instance: Instance, discard: boolean): void {
    this.#instances.delete(instance.id);
    this.#actions.stop(instance.id, discard);
  }

  #count(state: State): number {
    let count = 0;
    for (const instance of this.#instances.values()) if (instance.state === state) count++;
    return count;
  }

  #hasInstance(): boolean {
    return this.#instances.size > this.#count('draining');
  }
}

const isServing = ({ state }: Instance): boolean => state !== 'starting' && state !== 'draining';
const isIdle = ({ state, load }: Instance): boolean =>
  (state === 'ready' || state === 'frozen') && load === 0;
