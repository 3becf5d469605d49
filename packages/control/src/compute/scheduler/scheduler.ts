import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import type { Artifacts } from '../../storage/artifacts/artifacts.ts';
import { queryAll, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { Overcommit, SchedulingLimits } from './overcommit.ts';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import { createWorkLoop } from '../../platform/work/work-loop.ts';
import { allocate } from './allocate.ts';
import { CreateQueue } from './create-queue.ts';
import { createHostAdvice, readHosts, type HostUsage } from './hosts.ts';
import { NEED, NEED_OF, toNeed, type NeedRow } from './need.ts';
import { HostChangedError, place, type Placed, type Placement } from './place.ts';
import { choose, chooseRegion, type Need } from './placement.ts';
import { planRound, type PendingRequest, type WaitingRequest } from './plan.ts';
import { candidateHosts, preempt } from './preempt.ts';
import { Turns } from './turns.ts';

export interface Scheduler {
  /** Requests a placement round after a create or a release of capacity. Returns at once; calls are coalesced. */
  kick(): void;
  /** Like `kick`, also if the last round found no capacity. */
  capacityReleased(): void;
  /** The queue of creates that wait for a host. */
  queue: CreateQueue;
  /** Reads the hosts once, and returns a function that explains why a sandbox is not placed. */
  explainer(): Promise<(need: Need) => string>;
  /**
   * Chooses among regions for this need: one with the capacity now, else one that will have it. The first one when none
   * ever can. From figures that are up to a second old.
   */
  regionWithMostCapacity: (need: Omit<Need, 'region'>) => (regions: readonly string[]) => Promise<string>;
  /** Resolves when no round is running or requested. */
  idle(): Promise<void>;
  close(): Promise<void>;
}

type PendingRow = NeedRow & {
  org_id: string;
  turn: number;
  waited_ms: number;
  reserved_runner_id: string | null;
};

/**
 * The whole queue, and none while no host is ready. Non-spot first: capacity of evicted spot sandboxes must not go to other spot
 * sandboxes. Then organizations take turns (`Turns`). Without parameters it is planned once, which takes longer than to run it; with
 * `offset 0` PostgreSQL looks up the projects of the queue, and never reads all that there are.
 */
const PENDING = statement<PendingRow>(
  'schedule-pending',
  `select s.id, ${NEED}, p.org_id,
          row_number() over (partition by s.spot, p.org_id order by s.created_at)::integer as turn, extract(epoch from now() - s.created_at)::double precision * 1000 as waited_ms,
          v.runner_id as reserved_runner_id
     from ${NEED_OF} cross join lateral (select org_id from projects where id = s.project_id offset 0) p
     left join scheduler_reservations v on v.sandbox_id = s.id
    where s.status = 'pending'
      and exists (select 1 from runners where forgotten_at is null and status = 'online' and ready and draining_since is null)
    order by s.spot, turn, s.created_at`,
);
/** A region's row stays until it is replaced; it is valid only while its sandbox is pending. */
const RESERVE = statement(
  'schedule-reserve',
  `insert into scheduler_reservations (region, sandbox_id, runner_id)
   select * from jsonb_to_recordset($1::jsonb) as t(region text, sandbox_id uuid, runner_id uuid)
   on conflict (region) do update set sandbox_id = excluded.sandbox_id, runner_id = excluded.runner_id, created_at = now()`,
);
/** Of these: those that no other transaction is moving now. $1 ids */
const STILL_PENDING = statement<{ id: string }>(
  'schedule-still-pending',
  `select id from sandboxes where id = any($1::uuid[]) and status = 'pending' for no key update skip locked`,
);
/** Most sandboxes that one transaction places: it makes starts on their hosts wait until its commit. */
const TRANSACTION = 50;
/** Rounds that follow at once because a host had changed. The periodic task starts the next one. */
const REPEATS = 3;
/** How long a round waits for creates that are being inserted, in milliseconds: one round for many is less work than one for each. */
const JOINING_MS = 5;
/** How long after a round without capacity a create does not start a new one. */
const NO_CAPACITY_MS = 100;

export interface SchedulerOptions {
  database: Database;
  lifecycle: Lifecycle;
  artifacts: Pick<Artifacts, 'placed' | 'announce'>;
  onVolumesChanged: (changes: readonly AssignmentChange[]) => void;
  limits: SchedulingLimits;
  log: Logger;
}

export function createScheduler(options: SchedulerOptions): Scheduler {
  const { database, lifecycle, artifacts, onVolumesChanged, limits, log } = options;
  let repeats = 0;
  let noCapacityUntil = 0;
  const queue = new CreateQueue(database, { most: limits.createQueue, share: limits.createQueueShare });
  const { overcommit, reserveAfterMs } = limits;
  const turns = new Turns();
  const advice = createHostAdvice(database.pool, overcommit);

  /** @returns whether a host had changed, so that sandboxes that fit elsewhere are still pending */
  async function round(): Promise<boolean> {
    // Two servers that read, choose and write at the same time do no harm: `place` writes what is still right.
    const [hosts, queued] = await database.batch((on) => [
      readHosts(on, overcommit),
      // All of it: later requests may fit where the first ones do not.
      queryAll(on, PENDING),
    ]);
    if (!hosts.some((host) => host.ready && !host.draining)) {
      noCapacityUntil = performance.now() + NO_CAPACITY_MS;
      return false;
    }
    const pending = turns.order(queued);
    if (pending.length === 0) return false;
    const rows = new Map(pending.map((row) => [row.id, row]));
    const requests = pending.map((row) => toRequest(row, overcommit));
    const plan = planRound(requests, hosts, { overcommit, reserveAfterMs });
    const fresh = plan.reservations.filter((one) => rows.get(one.id)?.reserved_runner_id !== one.runnerId);
    if (fresh.length > 0) {
      const reserved = fresh.map(({ region, id, runnerId }) => ({
        region,
        sandbox_id: id,
        runner_id: runnerId,
      }));
      await queryAll(database.pool, RESERVE, [JSON.stringify(reserved)]);
    }
    const needs = new Map(requests.map(({ id, need }) => [id, need]));
    const placements = plan.place.flatMap(({ id, runnerId }): Placement[] => {
      const need = needs.get(id);
      const hasArtifact = rows.get(id)?.artifact_id !== null;
      return need === undefined ? [] : [{ id, runnerId, need, hasArtifact }];
    });
    let moved = 0;
    let changed = false;
    for (let from = 0; from < placements.length && !changed; from += TRANSACTION) {
      try {
        const placed = await place(options, placements.slice(from, from + TRANSACTION));
        announce(placed);
        moved += placed.rows.length;
        for (const { id } of placed.rows) {
          const org = rows.get(id)?.org_id;
          if (org !== undefined) turns.served(org);
        }
      } catch (error) {
        if (!(error instanceof HostChangedError)) throw error;
        changed = true;
      }
    }
    const reject = plan.reject.map(({ id, reason }) => ({ id, error: reason }));
    const rejected = await lifecycle.applyWithin(database.pool, 'reject', reject, { skipLocked: true });
    if (rejected.length > 0) lifecycle.announce(rejected);
    if (pending.length > moved + rejected.length) noCapacityUntil = performance.now() + NO_CAPACITY_MS;
    await preemptForWaiting(plan.waiting, hosts);
    return changed;
  }

  async function preemptForWaiting(
    waiting: readonly WaitingRequest[],
    hosts: readonly HostUsage[],
  ): Promise<void> {
    const candidates = candidateHosts(
      waiting.map(({ need }) => need),
      hosts,
      overcommit,
    );
    if (candidates.length === 0) return;
    const moved = await allocate(database, async (client) => {
      // None is evicted for a sandbox that another server has placed, or is placing.
      const still = await queryAll(client, STILL_PENDING, [waiting.map(({ id }) => id)]);
      const ids = new Set(still.map(({ id }) => id));
      const needs = waiting.filter(({ id }) => ids.has(id)).map(({ need }) => need);
      return preempt(client, lifecycle, needs, overcommit, candidates);
    });
    if (moved.length > 0) lifecycle.announce(moved);
  }

  function announce({ rows, fetches, copies }: Placed): void {
    artifacts.announce(fetches);
    // Before the sandboxes that mount them.
    if (copies.length > 0) onVolumesChanged(copies);
    if (rows.length > 0) lifecycle.announce(rows);
  }

  const loop = createWorkLoop({
    async step() {
      await queue.untilInserted(JOINING_MS);
      repeats = (await round()) ? repeats + 1 : 0;
      await queue.refresh();
      return repeats > 0 && repeats <= REPEATS;
    },
    onError(error) {
      // Unplaced sandboxes stay pending; the periodic task starts the next round.
      log.error({ err: error }, 'a placement round failed');
      noCapacityUntil = performance.now() + NO_CAPACITY_MS;
    },
  });

  return {
    kick() {
      if (performance.now() >= noCapacityUntil) loop.kick();
    },
    capacityReleased() {
      noCapacityUntil = 0;
      loop.kick();
    },
    queue,
    async explainer() {
      const hosts = await advice();
      return (need) => {
        const choice = choose(need, hosts, overcommit);
        return 'reason' in choice ? choice.reason : 'capacity became free only after its deadline';
      };
    },
    regionWithMostCapacity: (need) => async (regions) => {
      const region = chooseRegion(need, regions, await advice(), overcommit);
      if (region === undefined) throw new Error('no region to choose from');
      return region;
    },
    idle: loop.idle,
    close: loop.close,
  };
}

function toRequest(row: PendingRow, overcommit: Overcommit): PendingRequest {
  return {
    id: row.id,
    need: toNeed(row, overcommit),
    spot: row.spot,
    waitedMs: row.waited_ms,
    reservedRunnerId: row.reserved_runner_id,
  };
}
