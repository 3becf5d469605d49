import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import type { Artifacts } from '../../storage/artifacts/artifacts.ts';
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { Overcommit, SchedulingLimits } from './overcommit.ts';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import type { SandboxRow } from '@releap/database';
import { PLACE as PLACE_VOLUMES } from '../../storage/volumes/copy-statements.ts';
import { isInUse } from '../../storage/volumes/uncommitted.ts';
import { createWorkLoop } from '../../platform/work/work-loop.ts';
import { CreateQueue } from './create-queue.ts';
import { createHostAdvice, readHosts } from './hosts.ts';
import { preempt } from './preempt.ts';
import { choose, chooseRegion, isOvercommitted, type Need } from './placement.ts';
import { planRound, type PendingRequest } from './plan.ts';
import { withSchedulerLock } from './scheduler-lock.ts';

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

export interface NeedRow {
  id: string;
  region: string;
  mode: 'burstable' | 'dedicated';
  spot: boolean;
  cpu_arch: string;
  cpu: number;
  mem_mib: number;
  disk_mib: number;
  gpu_host: number;
  /** The one host that it may run on, as the one that has its source, which cannot be moved. */
  required_runner_id: string | null;
  /** Its host builds its image. */
  is_built: boolean;
  is_docker: boolean;
  /** The artifact that it is made from, and the hosts that have it. */
  artifact_id: string | null;
  holders: string[];
  volumes: string[];
  copy_holders: string[];
  mounted_on: string[];
}

type PendingRow = NeedRow & { waited_ms: number; reserved_runner_id: string | null };

/**
 * Columns of a sandbox's need, over `sandboxes s`. Sums are of type numeric: each size may be as large as an integer, and
 * an integer sum would overflow and fail every statement that reads the sandbox.
 */
export const NEED = `s.region, s.mode, s.spot, cpu_arch, cpu, mem_mib, gpu_host,
  scratch_mib::double precision + coalesce(docker_data_mib, 0) + case when has_memory then mem_mib else 0 end as disk_mib,
  coalesce(
    (s.spec ->> 'required_runner_id')::uuid,
    (select k.runner_id from snapshots k where k.id = (s.spec -> 'origin' ->> 'snapshot_id')::uuid
        and (k.kind = 'full' or not exists (select 1 from artifacts a where a.id = k.id and a.stored_at is not null))),
    (select l.runner_id from artifacts a join artifact_locations l on l.artifact_id = a.id
      where a.kind = 'image' and a.stored_at is null and a.id = sandbox_artifact(s.project_id, s.spec) and l.status = 'present' limit 1)
  ) as required_runner_id,
  coalesce(s.spec -> 'root' ->> 'type' = 'dockerfile', false) as is_built,
  coalesce((s.spec -> 'root' ->> 'docker')::boolean, false) as is_docker,
  sandbox_artifact(s.project_id, s.spec) as artifact_id,
  array(select l.runner_id from artifact_locations l
         where l.artifact_id = sandbox_artifact(s.project_id, s.spec) and l.status = 'present' and l.desired <> 'deleted') as holders,
  array(select a.volume_id from volume_attachments a where s.volume_count > 0 and a.sandbox_id = s.id) as volumes,
  array(select c.runner_id from volume_attachments a join volume_copies c on c.volume_id = a.volume_id
         where s.volume_count > 0 and a.sandbox_id = s.id and c.desired = 'present' and c.present) as copy_holders,
  array(select c.runner_id from volume_attachments a join volume_copies c on c.volume_id = a.volume_id
         where s.volume_count > 0 and a.sandbox_id = s.id and c.desired = 'present' and ${isInUse('c')}) as mounted_on`;

const ANY_READY = statement<{ n: number }>(
  'schedule-any-ready',
  `select 1 as n from runners where status = 'online' and ready and draining_since is null limit 1`,
);
/** Non-spot first: capacity of evicted spot sandboxes must not go to other spot sandboxes. Then organizations take turns. */
const PENDING = statement<PendingRow>(
  'schedule-pending',
  `select s.id, ${NEED}, extract(epoch from now() - s.created_at)::double precision * 1000 as waited_ms,
          v.runner_id as reserved_runner_id
     from sandboxes s join projects p on p.id = s.project_id left join scheduler_reservations v on v.sandbox_id = s.id
    where s.status = 'pending'
    order by s.spot, row_number() over (partition by s.spot, p.org_id order by s.created_at), s.created_at limit $1`,
);
/** A region's row stays until it is replaced; it is valid only while its sandbox is pending. */
const RESERVE = statement(
  'schedule-reserve',
  `insert into scheduler_reservations (region, sandbox_id, runner_id)
   select * from jsonb_to_recordset($1::jsonb) as t(region text, sandbox_id uuid, runner_id uuid)
   on conflict (region) do update set sandbox_id = excluded.sandbox_id, runner_id = excluded.runner_id, created_at = now()`,
);
/** Most sandboxes per round, unless the queue is larger. */
const ROUND = 1_000;
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

export function createScheduler({
  database,
  lifecycle,
  artifacts,
  onVolumesChanged,
  limits,
  log,
}: SchedulerOptions): Scheduler {
  let noCapacityUntil = 0;
  const queue = new CreateQueue(database, { most: limits.createQueue, share: limits.createQueueShare });
  const { overcommit, reserveAfterMs } = limits;
  const advice = createHostAdvice(database.pool, overcommit);

  async function round(): Promise<void> {
    if ((await queryOne(database.pool, ANY_READY)) === undefined) {
      noCapacityUntil = performance.now() + NO_CAPACITY_MS;
      return;
    }
    const { moved, left, fetches, copies } = await withSchedulerLock(database, async (client) => {
      // The whole queue: later requests may fit where the first ones do not.
      const pending = await queryAll(client, PENDING, [Math.max(ROUND, limits.createQueue)]);
      if (pending.length === 0) return { moved: [], left: 0, fetches: [], copies: [] };
      const hosts = await readHosts(client, overcommit);
      const requests = pending.map((row) => toRequest(row, overcommit));
      const plan = planRound(requests, hosts, { overcommit, reserveAfterMs });
      const fresh = plan.reservations.filter(
        (one) => pending.find((row) => row.id === one.id)?.reserved_runner_id !== one.runnerId,
      );
      if (fresh.length > 0) {
        const rows = fresh.map(({ region, id, runnerId }) => ({
          region,
          sandbox_id: id,
          runner_id: runnerId,
        }));
        await queryAll(client, RESERVE, [JSON.stringify(rows)]);
      }
      const place = plan.place.map(({ id, runnerId }) => ({ id, place_on: runnerId }));
      const reject = plan.reject.map(({ id, reason }) => ({ id, error: reason }));
      const placed = await lifecycle.applyWithin(client, 'place', place, { skipLocked: true });
      const needing = new Set(pending.filter((row) => row.artifact_id !== null).map(({ id }) => id));
      const fetching = placed.map(({ id }) => id).filter((id) => needing.has(id));
      const fetches = fetching.length === 0 ? [] : await artifacts.placed(client, fetching);
      const attached = placed.filter(({ volume_count }) => volume_count > 0).map(({ id }) => id);
      const copies = attached.length === 0 ? [] : await queryAll(client, PLACE_VOLUMES, [attached]);
      const rows: SandboxRow[] = [
        ...placed,
        ...(await lifecycle.applyWithin(client, 'reject', reject, { skipLocked: true })),
      ];
      const left = pending.length - rows.length;
      rows.push(...(await preempt(client, lifecycle, plan.waiting, overcommit, hosts)));
      return { moved: rows, left, fetches, copies };
    });
    artifacts.announce(fetches);
    // Before the sandboxes that mount them.
    if (copies.length > 0) onVolumesChanged(copies);
    if (moved.length > 0) lifecycle.announce(moved);
    if (left > 0) noCapacityUntil = performance.now() + NO_CAPACITY_MS;
  }

  const loop = createWorkLoop({
    async step() {
      await round();
      await queue.refresh();
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

export function toNeed(row: NeedRow, overcommit: Overcommit): Need {
  return {
    region: row.region,
    arch: row.cpu_arch,
    cpu: row.cpu,
    mem_mib: row.mem_mib,
    disk_mib: row.disk_mib,
    gpus: row.gpu_host,
    requiredRunnerId: row.required_runner_id,
    isBuilt: row.is_built,
    isDocker: row.is_docker,
    holders: row.holders,
    volumes: row.volumes,
    copyHolders: row.copy_holders,
    mountedOn: row.mounted_on,
    overcommitted: isOvercommitted(row, overcommit),
  };
}
