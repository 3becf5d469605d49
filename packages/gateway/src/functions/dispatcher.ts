/** The queues and instances of all functions that are called through this gateway. */
import {
  FairShare,
  type GatewayFunction,
  HANDLER_LISTEN_MS,
  overloaded,
  unavailable,
} from '@releap/contract';
import type { Logger } from 'pino';
import type { InstanceLeases } from '../control/instance-leases.ts';
import { AddressHolds } from '../engine/address-holds.ts';
import { EndpointPools } from '../http/endpoints.ts';
import { FunctionVersion, RETRY_AFTER_SECS, type Slot, type VersionLimits } from './function-version.ts';
import type { InstanceState } from './version-queue.ts';

/** How often what depends on the time alone is looked at. */
const TICK_MS = 100;
/** Of a thaw: a runner answers at once, unless it restarts. */
const RUNNER_TIMEOUTS = { headersMs: 5_000, bodyMs: 5_000 };
export interface DispatcherLimits extends VersionLimits {
  /** Most requests that are open, whose places organizations share. */
  calls: number;
  /** Most requests that wait, of one version and of all, whose places organizations share. */
  waitingOfVersion: number;
  waiting: number;
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

export interface DispatcherOptions {
  leases: Pick<InstanceLeases, 'acquire'>;
  limits: DispatcherLimits;
  log: Logger;
}

export class Dispatcher {
  readonly #options: DispatcherOptions;
  readonly #holds = new AddressHolds(() => true);
  readonly #runners = new EndpointPools(RUNNER_TIMEOUTS);
  readonly #versions = new Map<string, FunctionVersion>();
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

  async #acquire(
    version: FunctionVersion,
    owner: string,
    signal: AbortSignal,
    isPatient: boolean,
  ): Promise<Slot> {
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

  #versionOf(called: GatewayFunction): FunctionVersion {
    const known = this.#versions.get(called.version_id);
    if (known !== undefined) {
      known.configure(called);
      return known;
    }
    for (const other of this.#versions.values()) {
      if (other.called.id === called.id && other.called.version < called.version) other.supersede();
    }
    const version = new FunctionVersion(called, {
      ...this.#options,
      holds: this.#holds,
      runners: this.#runners,
    });
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
