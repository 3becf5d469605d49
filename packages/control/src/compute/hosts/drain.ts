/**
 * Draining a host: it accepts no new sandboxes, spot sandboxes are evicted, persistent ones are paused, or stopped if
 * their memory cannot be saved. Ephemeral ones run until they end, unless the drain is forced. With `move`, persistent ones are then moved
 * to other hosts, where those run again that ran before (compute/moves). The drain is recorded in
 * the host's row: a periodic task on any server continues it, also for sandboxes that start to run later.
 */
import { formatSandboxId, type HostDrainResponse } from '@releap/contract';
import { queryAll, statement, type Database, type Queryable } from '@releap/database';
import { markDraining, unmarkDraining } from '../../fleet/runners/operator-marks.ts';
import { lockHosts } from '../scheduler/hosts.ts';
import { allocate } from '../scheduler/allocate.ts';
import type { Lifecycle } from '../sandboxes/lifecycle.ts';
import { BEGIN, BEGIN_RESTING } from '../moves/statements.ts';
import type { Moves } from '../moves/moves.ts';
import { retryingDeadlocks } from '../../platform/lifecycle/apply.ts';
import type { SandboxRow } from '@releap/database';
import type { SandboxEvent } from '../sandboxes/transitions.ts';
import { hostNotFound } from './queries.ts';

export interface DrainContext {
  database: Database;
  lifecycle: Lifecycle;
  moves: Pick<Moves, 'kick'>;
}

export type Drained = HostDrainResponse['moved'];

/** Of a host, those that are moved: the others run until it is their turn, and none is paused for a move that has no target. */
const PAUSED_AT_ONCE = 4;

/**
 * Sandboxes to move off the draining hosts, or off this one. One that could not be paused continues with an error, and
 * is retried later. A disconnected host is skipped: sandboxes that it cannot report would become lost. Instances of functions end
 * when their gateways give them up, or when the drain is forced. $1 host or null
 */
const LEAVING = statement<{ id: string; runner_id: string; moves: boolean; on: SandboxEvent }>(
  'host-leaving',
  `select c.id, c.runner_id, c.moves, c.on from (
     select s.id, s.runner_id, k.moves,
            case when s.spot and not k.moves then 'evict'
                 when s.persistent and s.owner_service is distinct from 'functions' then 'drain' else 'drain-force' end as on,
            row_number() over (partition by s.runner_id, k.moves order by s.created_at) as turn
       from runners r join sandboxes s on s.runner_id = r.id and s.held
      cross join lateral (select r.drain_move and s.persistent and s.owner_kind = 'project' as moves) k
      where r.draining_since is not null and r.status = 'online' and ($1::uuid is null or r.id = $1)
        and (s.status = 'running' or (not s.persistent and s.status in ('assigned', 'building', 'booting')))
        and (s.spot or s.persistent or r.drain_force)
        and (s.owner_service is distinct from 'functions' or r.drain_force)
        and not (k.moves and exists (select 1 from sandbox_moves m
                                      where m.sandbox_id = s.id and m.status in ('storing', 'placing', 'resuming')))
        and (s.error is null or s.updated_at < now() - interval '30 seconds')
   ) c
    where not c.moves or c.turn <= ${PAUSED_AT_ONCE} - (
            select count(*) from sandbox_moves m join sandboxes q on q.id = m.sandbox_id
             where m.source_id = c.runner_id and m.resumes and m.status in ('waiting', 'storing', 'placing') and q.status <> 'running')
    limit 500`,
);
const LEFT = statement<{
  id: string;
  region: string;
  status: HostDrainResponse['remaining'][number]['status'];
  persistent: boolean;
  spot: boolean;
}>(
  'host-left',
  `select id, region, status, persistent, spot from sandboxes
    where held and runner_id = $1 and status in ('assigned', 'building', 'booting', 'running') order by created_at`,
);

/**
 * Records the drain and does its first step in one transaction, so that the result is this call's own. Nothing new is
 * placed there from now on. Throws 404 for an unknown host.
 */
export async function beginDrain(
  { database, lifecycle, moves }: DrainContext,
  id: string,
  how: { force: boolean; move: boolean },
): Promise<Drained> {
  const moved = await allocate(database, async (client) => {
    if (!(await markDraining(client, id, how))) throw hostNotFound(id);
    // Waits for placements in progress, so that the step below sees their sandboxes. Later ones see the drain.
    await lockHosts(client, [id]);
    return step(client, id, lifecycle);
  });
  lifecycle.announce(moved);
  moves.kick();
  return byOutcome(moved);
}

export async function endDrain(database: Database, id: string): Promise<void> {
  // They run again, although their moves have failed.
  await queryAll(database.pool, BEGIN_RESTING, [id, true]);
  if (!(await unmarkDraining(database.pool, id))) throw hostNotFound(id);
}

/** One step of all drains. */
export async function drain({ database, lifecycle, moves }: DrainContext): Promise<void> {
  const moved = await retryingDeadlocks(() =>
    database.transaction((client) => step(client, null, lifecycle)),
  );
  if (moved.length > 0) lifecycle.announce(moved);
  if ((await queryAll(database.pool, BEGIN_RESTING, [null, false])).length > 0) moves.kick();
}

async function step(
  on: Queryable,
  id: string | null,
  { applyWithin }: Pick<Lifecycle, 'applyWithin'>,
): Promise<SandboxRow[]> {
  const leaving = await queryAll(on, LEAVING, [id]);
  const moved: SandboxRow[] = [];
  for (const event of ['evict', 'drain', 'drain-force'] as const) {
    const changes = leaving
      .filter((row) => row.on === event)
      .map(({ id: vm, runner_id }) => ({ id: vm, runner_id }));
    moved.push(...(await applyWithin(on, event, changes)));
  }
  const moving = new Set(leaving.filter((row) => row.moves).map((row) => row.id));
  const paused = moved.filter((row) => moving.has(row.id));
  if (paused.length > 0)
    await queryAll(on, BEGIN, [paused.map((row) => row.id), paused.map((row) => row.runner_id)]);
  return moved;
}

function byOutcome(rows: readonly SandboxRow[]): Drained {
  const moved: Drained = { paused: [], stopped: [], deleted: [] };
  const lists = { pausing: moved.paused, stopping: moved.stopped, deleting: moved.deleted } as const;
  for (const row of rows) lists[row.status as keyof typeof lists]?.push(formatSandboxId(row.region, row.id));
  return moved;
}

/** Sandboxes that still run there. */
export async function remaining(database: Database, id: string): Promise<HostDrainResponse['remaining']> {
  return (await queryAll(database.pool, LEFT, [id])).map(({ id: vm, region, ...row }) => ({
    vm_id: formatSandboxId(region, vm),
    ...row,
  }));
}
