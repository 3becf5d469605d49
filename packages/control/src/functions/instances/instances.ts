/**
 * Leases of instances for the gateways that are connected to this server. A gateway has an instance for itself until it
 * releases it. Leases are renewed as long as its connection holds them, and expire otherwise: then another gateway
 * may take the instance, and one that no gateway takes is deleted.
 */
import { type ApiError, badGateway, conflict, notFound, overloaded, quote } from '@releap/contract';
import { queryOne, type Database, type Queryable, type SandboxRow } from '@releap/database';
import type { Logger } from 'pino';
import type { Billing } from '../../tenancy/billing/billing.ts';
import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { ClusterNotifier } from '../../platform/events/cluster-notifier.ts';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { TargetEnd } from '../../edge/gateways/target-resolver.ts';
import type { Lifecycle } from '../../compute/sandboxes/lifecycle.ts';
import type { StateDeadlines } from '../../compute/sandboxes/transitions.ts';
import type { Scheduler } from '../../compute/scheduler/scheduler.ts';
import * as leases from './leases.ts';
import { createInstanceWatch, leaseLost, type InstanceWatch } from './instance-watch.ts';
import { insertInstance, instanceSandbox, type Purpose } from './new-instance.ts';
import { idleWanted } from './shortage.ts';
import { untried } from '../templates/untried.ts';
import { isToBeTried, takeOver, type DueVersion } from '../templates/attempts.ts';
import type { FunctionTemplates } from '../templates/templates.ts';
import { VERSION, type InstanceVersion } from './version.ts';

/**
 * How long it waits until a version has been tried, in milliseconds. The answer says what the trial waits for, and the gateway
 * asks again.
 */
const UNTRIED_MS = 5_000;
/** How often it looks while it waits, in milliseconds: other servers do not tell everything. */
const RECHECK_MS = 500;
/** Longest wait for a host with capacity, in milliseconds: callers wait no longer than that. */
const PENDING_MS = 30_000;
/** How long instances without a lease stay while this server has just started, in milliseconds. */
const AFTER_START_MS = 86_400_000;
/** How long rows of ended instances stay, in milliseconds, for the logs of their handlers. */
const ENDED_MS = 3_600_000;

/** Instances that are deleted in one transaction. */
const ENDED_BATCH = 200;
/** How often a gateway is told that an instance is on a drained host: it may not have been connected. */
const RETIRE_AGAIN_MS = 15_000;

/** The kind of change with which servers tell each other of `function-pressure`. */
export const FUNCTION_PRESSURE = 'function-pressure';
/** The same of `instances-retired`. */
export const INSTANCE_RETIRED = 'instance-retired';

/** A part of a gateway's request that keeps a lease. */
export interface LeaseHolder {
  readonly signal: AbortSignal;
  /** The gateway does not have the instance any more. */
  revoke(): void;
  onEnd(ended: (how: TargetEnd) => void): void;
}

export interface FunctionInstances extends InstanceWatch {
  /**
   * Leases an instance of this version that no other gateway has; a new one is started if there is none. Waits for a few
   * seconds while the version is tried.
   * @returns its sandbox, which may still be starting
   * @throws 404 for an unknown version, 402, 429 when there is no capacity, 502 when its handler cannot serve; NotTriedYet
   */
  lease(versionId: string, gatewayId: string, holder: LeaseHolder): Promise<string>;
  /**
   * The instance on which this server tries a pending version: a new one, or one of a server that is gone. Where `max_instances`
   * is reached, it asks gateways to give up idle instances and waits for half a minute; a new version is then tried beside them.
   * @returns undefined when another server tries it, or it is not pending any more
   * @throws 402; 429 when there is no capacity; the signal's reason
   */
  probe(version: DueVersion, serverId: string, signal: AbortSignal): Promise<string | undefined>;
  /** Renews the lease of an instance until the holder ends it. */
  keep(sandboxId: string, holderId: string, holder: LeaseHolder): void;
  /** Renews a lease, also after a reconnect. @throws 409 when the gateway does not have it any more */
  reclaim(sandboxId: string, versionId: string, gatewayId: string, holder: LeaseHolder): Promise<void>;
  /** Renews the leases of connected gateways. */
  renew(): Promise<void>;
  /** Deletes instances that no gateway has, or that cannot serve any more. */
  removeEnded(): Promise<void>;
  /** Asks gateways to give up instances on hosts that are drained, as soon as they serve nothing. */
  retireDrained(): Promise<void>;
  /** Asks connected gateways to end instances that serve nothing, where sandboxes wait for a host. */
  makeWay(): Promise<void>;
}

/** The settings of instances. */
export interface InstanceLimits {
  /** How long a gateway keeps an instance of a function without a connection, in milliseconds. */
  functionLeaseMs: number;
  /** How long another gateway may take an instance that was released or whose lease ran out, in milliseconds. */
  functionGraceMs: number;
  /** How long a gateway, or the try of a version, waits for another instance to end where `max_instances` is reached, in milliseconds. */
  functionFullMs: number;
}

export interface FunctionInstancesOptions {
  database: Database;
  lifecycle: Lifecycle;
  scheduler: Scheduler;
  billing: Billing;
  changes: ChangeNotifier;
  cluster: ClusterNotifier;
  events: EventBus;
  limits: InstanceLimits & { deadlines: Pick<StateDeadlines, 'pending'> };
  templates: FunctionTemplates;
  log: Logger;
}

interface Held {
  gatewayId: string;
  holders: Set<LeaseHolder>;
}

export function createFunctionInstances(options: FunctionInstancesOptions): FunctionInstances {
  const { database, lifecycle, scheduler, billing, changes, cluster, events, limits, log, templates } =
    options;
  const leaseMs = limits.functionLeaseMs;
  const watch = createInstanceWatch({ changes, database, templates });
  /** By sandbox. */
  const held = new Map<string, Held>();
  /** Functions for whose instances a gateway waits, and how many do. */
  const waiting = new Map<string, number>();
  /** Instances on hosts that are drained, and when their gateways were last told. */
  let retiredAt = new Map<string, number>();
  const startedAt = performance.now();

  events.on('sandboxes-changed', (rows) => {
    if (rows.some((row) => row.owner_kind === 'service' && row.status === 'deleted'))
      changes.changed(waiting.keys());
  });

  async function release(lease: leases.HeldLease, discard: boolean): Promise<void> {
    const { functionId, moved } = await database.transaction(async (client) => {
      const released = await leases.release(client, lease);
      if (released === undefined || !discard) return { functionId: released, moved: [] };
      return {
        functionId: released,
        moved: await lifecycle.applyWithin(client, 'delete', [{ id: lease.sandbox_id }]),
      };
    });
    if (moved.length > 0) lifecycle.announce(moved);
    if (functionId === undefined) return;
    changes.changed([functionId]);
    cluster.publish([[functionId, null, 0, 'function']]);
  }

  function hold(sandboxId: string, gatewayId: string, holder: LeaseHolder): void {
    const entry = held.get(sandboxId) ?? { gatewayId, holders: new Set() };
    held.set(sandboxId, entry);
    entry.holders.add(holder);
    holder.onEnd((how) => {
      entry.holders.delete(holder);
      if (entry.holders.size > 0 || held.get(sandboxId) !== entry) return;
      held.delete(sandboxId);
      if (how !== 'disconnected')
        // Otherwise it runs out.
        release({ sandbox_id: sandboxId, gateway_id: gatewayId }, how === 'discarded').catch(
          (error: unknown) =>
            log.warn({ err: error, vm: sandboxId }, 'the lease of an instance could not be released'),
        );
    });
  }

  /**
   * Claims an instance that is there, or starts one, while no other request takes or adds instances of the function.
   * @param claim null: none may be started; undefined: there is none
   * @param captureOn the host that a new one must run on; null: any
   */
  async function claimOrStart(
    version: InstanceVersion,
    purpose: Purpose,
    holderId: string,
    claim: (client: Queryable) => Promise<{ id: string | null | undefined; moved?: SandboxRow[] }>,
    captureOn: string | null = null,
  ): Promise<string | undefined> {
    const { root } = version;
    if (root === null)
      throw conflict(
        `version ${version.version} of function ${quote(version.name)} has no image yet`,
        'image_not_ready',
      );
    const deadlineMs = Math.min(PENDING_MS, limits.deadlines.pending);
    const sandbox = instanceSandbox(version, root, purpose, deadlineMs);
    if (captureOn !== null) sandbox.spec.required_runner_id = captureOn;
    const place = scheduler.queue.admit(sandbox.ids.id, version.org_id);
    let started = false;
    try {
      const { id, moved } = await database.transaction(async (client) => {
        await leases.lockFunction(client, version.function_id);
        const claimed = await claim(client);
        if (claimed.id !== undefined) return claimed;
        if ('refused' in place) throw overloaded(place.refused);
        if (purpose === 'serve' && version.snapshot_kind === 'fn_ready') {
          const template = await templates.source(client, version.id, sandbox.spec);
          // What is resumed from memory is persistent: its disk goes with it.
          if (template !== undefined) {
            const { source, runnerId } = template;
            const spec = { ...sandbox.spec, persistent: true, required_runner_id: runnerId };
            Object.assign(sandbox, { source, spec });
          }
        }
        await insertInstance(client, version, sandbox, purpose, { gatewayId: holderId, ms: leaseMs });
        return { ...claimed, id: sandbox.ids.id };
      });
      started = id === sandbox.ids.id;
      if (moved !== undefined && moved.length > 0) lifecycle.announce(moved);
      if (started) scheduler.kick();
      return id ?? undefined;
    } finally {
      if ('taken' in place) {
        if (started) place.taken();
        else place.withdraw();
      }
    }
  }

  /** One attempt: adopts an instance, starts one, or `undefined` when the function has as many as it may. */
  function take(version: InstanceVersion, gatewayId: string): Promise<string | undefined> {
    const { id: versionId, function_id: functionId } = version;
    return claimOrStart(version, 'serve', gatewayId, async (client) => {
      const adopted = await leases.adopt(client, versionId, gatewayId, leaseMs);
      if (adopted !== undefined) return { id: adopted };
      const moved = await deleteSpare(client, functionId, versionId);
      return moved === undefined ? { id: undefined } : { id: null, moved };
    });
  }

  /** Deletes instances of other versions that no gateway has. @returns undefined when the function may have one more instance */
  async function deleteSpare(
    client: Queryable,
    functionId: string,
    versionId: string,
  ): Promise<SandboxRow[] | undefined> {
    const { live, max } = await leases.countInstances(client, functionId, versionId);
    if (max === null || live < max) return undefined;
    return lifecycle.applyWithin(
      client,
      'delete',
      await leases.spareInstances(client, functionId, versionId),
    );
  }

  function press(functionId: string): void {
    events.emit('function-pressure', [functionId]);
    cluster.publish([[functionId, null, 0, FUNCTION_PRESSURE]]);
  }

  /** While this is held, the end of one of the function's instances is a change of the function. */
  function waitFor(functionId: string): Disposable {
    waiting.set(functionId, (waiting.get(functionId) ?? 0) + 1);
    return {
      [Symbol.dispose]: () => {
        const left = (waiting.get(functionId) ?? 1) - 1;
        if (left > 0) waiting.set(functionId, left);
        else waiting.delete(functionId);
      },
    };
  }

  const full = ({ name, max_instances: max }: InstanceVersion): ApiError =>
    overloaded(
      `function ${quote(name)} has as many instances as its max_instances allows (${max}), those of tries included`,
    );

  /** The version, once it was tried. @throws 404; 502; after a while 429 with what the try waits for */
  async function triedVersion(versionId: string, signal: AbortSignal): Promise<InstanceVersion> {
    using watch = changes.watch(versionId);
    const until = performance.now() + UNTRIED_MS;
    for (;;) {
      const version = await queryOne(database.pool, VERSION, [versionId]);
      if (version === undefined)
        throw notFound(`function version ${quote(versionId)} not found`, 'function_version_not_found');
      const { name, version: number, template_state: state, template_error: error } = version;
      if (state === 'failed')
        throw badGateway(
          `version ${number} of function ${quote(name)} cannot serve: ${error ?? 'no reason was given'}`,
        );
      if (state === 'published') return version;
      if (performance.now() >= until) throw await untried(database.pool, version);
      await watch.next(RECHECK_MS, signal);
      signal.throwIfAborted();
    }
  }

  return {
    async lease(versionId, gatewayId, holder) {
      const version = await triedVersion(versionId, holder.signal);
      const { function_id: functionId } = version;
      await billing.requireCredits(version.org_id);
      using watch = changes.watch(functionId);
      const until = performance.now() + limits.functionFullMs;
      using _ = waitFor(functionId);
      for (;;) {
        const id = await take(version, gatewayId);
        if (id !== undefined) {
          hold(id, gatewayId, holder);
          return id;
        }
        if (performance.now() >= until) throw full(version);
        press(functionId);
        await watch.next(RECHECK_MS, holder.signal);
        holder.signal.throwIfAborted();
      }
    },

    async probe(version, serverId, signal) {
      const {
        id: versionId,
        function_id: functionId,
        template_state: state,
        capture_on: captureOn,
      } = version;
      await billing.requireCredits(version.org_id);
      using watch = changes.watch(functionId);
      const until = performance.now() + limits.functionFullMs;
      using _ = waitFor(functionId);
      for (;;) {
        const isLast = performance.now() >= until;
        const found = { isFull: false };
        const id = await claimOrStart(
          version,
          'probe',
          serverId,
          async (client) => {
            if (!(await isToBeTried(client, versionId))) return { id: null };
            const taken = await takeOver(client, versionId, serverId, leaseMs);
            // A deploy must not wait for ever; another capture of a version that serves may.
            if (taken !== undefined || (isLast && state !== 'published')) return { id: taken };
            const moved = await deleteSpare(client, functionId, versionId);
            found.isFull = moved !== undefined;
            return moved === undefined ? { id: undefined } : { id: null, moved };
          },
          captureOn,
        );
        if (!found.isFull) return id;
        if (isLast) throw full(version);
        press(functionId);
        await watch.next(RECHECK_MS, signal);
        signal.throwIfAborted();
      }
    },

    ...watch,
    keep: hold,

    async reclaim(sandboxId, versionId, gatewayId, holder) {
      const lease = { sandbox_id: sandboxId, gateway_id: gatewayId };
      const isOurs = await leases.reclaim(database.pool, lease, versionId, leaseMs);
      if (!isOurs) throw leaseLost(sandboxId);
      hold(sandboxId, gatewayId, holder);
    },

    async renew() {
      const all = [...held].map(([sandbox_id, { gatewayId: gateway_id }]) => ({ sandbox_id, gateway_id }));
      const renewed = await leases.INSTANCES.renew(database.pool, all, leaseMs);
      for (const lease of all) {
        if (renewed.has(leases.INSTANCES.keyOf(lease))) continue;
        for (const holder of held.get(lease.sandbox_id)?.holders ?? []) holder.revoke();
      }
    },

    async retireDrained() {
      const drained = await leases.instancesOnDrainedHosts(database.pool);
      const now = performance.now();
      const isRecent = (at: number | undefined): at is number =>
        at !== undefined && now - at < RETIRE_AGAIN_MS;
      const ids = drained.filter((id) => !isRecent(retiredAt.get(id)));
      const before = retiredAt;
      // Those that are gone are forgotten.
      retiredAt = new Map(
        drained.map((id) => {
          const at = before.get(id);
          return [id, isRecent(at) ? at : now];
        }),
      );
      if (ids.length === 0) return;
      events.emit('instances-retired', ids);
      cluster.publish(ids.map((id) => [id, null, 0, INSTANCE_RETIRED]));
    },

    async makeWay() {
      for (const wanted of await idleWanted(database.pool, [...held.keys()]))
        events.emit('idle-instances-wanted', wanted);
    },

    async removeEnded() {
      // Leases expire while no server runs: gateways get time to reclaim their instances.
      const graceMs = performance.now() - startedAt < leaseMs ? AFTER_START_MS : limits.functionGraceMs;
      for (let ended = ENDED_BATCH; ended === ENDED_BATCH; ) {
        const moved = await database.transaction(async (client) =>
          lifecycle.applyWithin(client, 'delete', await leases.endedInstances(client, graceMs, ENDED_BATCH)),
        );
        ended = moved.length;
        if (ended === 0) break;
        lifecycle.announce(moved);
        events.emit('capacity-released');
      }
      await leases.purgeInstances(database.pool, ENDED_MS);
    },
  };
}
