import { all, first, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { ControlLimits } from '../limits.ts';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import type { SandboxRow } from '@releap/database';
import type { Change } from '../sandboxes/transition-sql.ts';
import { CreateQueue } from './create-queue.ts';
import { readHosts } from './hosts.ts';
import { preempt } from './preempt.ts';
import { choose, allocatable, type Need } from './placement.ts';
import { withSchedulerLock } from './scheduler-lock.ts';

export interface Scheduler {
  /** Something has been created or has got room: place what waits. Returns at once; many calls become one round. */
  kick(): void;
  /** Like `kick`, also if the last round found no room. */
  capacityReleased(): void;
  /** The creates that wait for a host. */
  queue: CreateQueue;
  /** Reads the hosts once, and gives what says why a sandbox is not placed. */
  explainer(): Promise<(need: Need) => string>;
  /** Of these regions, the one whose hosts have the most room. The first one when none has any. */
  regionWithMostCapacity: (regions: readonly string[]) => Promise<string>;
  /** Resolves when no round is under way or asked for. */
  idle(): Promise<void>;
  close(): Promise<void>;
}

interface PendingRow {
  id: string;
  region: string;
  cpu_arch: string;
  cpu: number;
  mem_mib: number;
  disk_mib: number;
  gpu_host: number;
  /** The host that keeps the snapshot which it begins with. */
  required_runner_id: string | null;
}

/**
 * Columns of what a sandbox needs, over `sandboxes s`. Each size is as large as an integer can be, and their sum is
 * larger: in integers a single such sandbox would end every statement that reads it.
 */
export const NEED = `region, cpu_arch, cpu, mem_mib, gpu_host,
  scratch_mib::double precision + coalesce(docker_data_mib, 0) + case when has_memory then mem_mib else 0 end as disk_mib,
  (select k.runner_id from snapshots k where k.id = (s.spec -> 'origin' ->> 'snapshot_id')::uuid) as required_runner_id`;

const ANY_READY = statement<{ n: number }>(
  'schedule-any-ready',
  `select 1 as n from runners where status = 'online' and ready and draining_since is null limit 1`,
);
/** What pays in full comes first: room that spot sandboxes were evicted for must not go to others of them. */
const PENDING = statement<PendingRow & { spot: boolean }>(
  'schedule-pending',
  `select id, ${NEED}, spot from sandboxes s where status = 'pending' order by spot, created_at limit $1`,
);
/** How many are looked at in a round, unless more may wait. */
const ROUND = 1_000;
/** How long after a round without room a mere create starts no new one. */
const NO_CAPACITY_MS = 100;

export interface SchedulerOptions {
  database: Database;
  lifecycle: Lifecycle;
  limits: ControlLimits;
  log: Logger;
}

export function createScheduler({ database, lifecycle, limits, log }: SchedulerOptions): Scheduler {
  let running: Promise<void> | undefined;
  let again = false;
  let noCapacityUntil = 0;
  const stop = new AbortController();
  const queue = new CreateQueue(database, limits.createQueue);

  async function round(): Promise<void> {
    if ((await first(database.pool, ANY_READY)) === undefined) {
      noCapacityUntil = performance.now() + NO_CAPACITY_MS;
      return;
    }
    const { moved, left } = await withSchedulerLock(database, async (client) => {
      // As many as may wait: those behind may find room where the first of them do not.
      const pending = await all(client, PENDING, [Math.max(ROUND, limits.createQueue)]);
      if (pending.length === 0) return { moved: [], left: 0 };
      const hosts = await readHosts(client);
      const place: Change[] = [];
      const reject: Change[] = [];
      const waits: Need[] = [];
      for (const row of pending) {
        const need = toNeed(row);
        const choice = choose(need, hosts, limits.overcommit);
        if ('host' in choice) {
          const { used } = choice.host;
          used.cpu += need.cpu;
          used.mem_mib += need.mem_mib;
          used.disk_mib += need.disk_mib;
          used.gpus += need.gpus;
          place.push({ id: row.id, place_on: choice.host.id });
        } else if (choice.unsatisfiable) {
          reject.push({ id: row.id, error: choice.reason });
        } else if (!row.spot) {
          waits.push(need);
        }
      }
      const rows: SandboxRow[] = [
        ...(await lifecycle.applyWithin(client, 'place', place)),
        ...(await lifecycle.applyWithin(client, 'reject', reject)),
      ];
      const left = pending.length - rows.length;
      rows.push(...(await preempt(client, lifecycle, waits, limits.overcommit)));
      return { moved: rows, left };
    });
    if (moved.length > 0) lifecycle.announce(moved);
    if (left > 0) noCapacityUntil = performance.now() + NO_CAPACITY_MS;
  }

  async function rounds(): Promise<void> {
    do {
      again = false;
      try {
        await round();
        await queue.refresh();
      } catch (error) {
        // What waits stays pending; the sweeper starts the next round.
        log.error({ err: error }, 'a placement round failed');
        noCapacityUntil = performance.now() + NO_CAPACITY_MS;
      }
    } while (again && !stop.signal.aborted);
  }

  const start = (): void => {
    if (stop.signal.aborted) return;
    again = true;
    running ??= rounds().finally(() => {
      running = undefined;
      // Asked for after the last look and before this line.
      if (again) start();
    });
  };

  return {
    kick() {
      if (performance.now() >= noCapacityUntil) start();
    },
    capacityReleased() {
      noCapacityUntil = 0;
      start();
    },
    queue,
    async explainer() {
      const hosts = await readHosts(database.pool);
      return (need) => {
        const choice = choose(need, hosts, limits.overcommit);
        return 'reason' in choice ? choice.reason : 'hosts had room only when its time was over';
      };
    },
    async regionWithMostCapacity(regions) {
      let best = regions[0];
      let most = -Infinity;
      for (const host of await readHosts(database.pool)) {
        if (!host.ready || host.draining || !regions.includes(host.region)) continue;
        const room = allocatable(host.facts, limits.overcommit);
        const share = Math.min(1 - host.used.cpu / room.cpu, 1 - host.used.mem_mib / room.mem_mib);
        if (share > most) {
          most = share;
          best = host.region;
        }
      }
      if (best === undefined) throw new Error('no region to choose from');
      return best;
    },
    async idle() {
      // A round may have begun while the one before ended.
      for (let round = running; round !== undefined; round = running) await round;
    },
    async close() {
      stop.abort();
      await running;
    },
  };
}

export function toNeed(row: PendingRow): Need {
  return {
    region: row.region,
    arch: row.cpu_arch,
    cpu: row.cpu,
    mem_mib: row.mem_mib,
    disk_mib: row.disk_mib,
    gpus: row.gpu_host,
    requiredRunnerId: row.required_runner_id,
  };
}
