/** The only code that changes a snapshot's status, and that starts the next capture of a sandbox. */
import {
  queryAll,
  columns,
  rowColumns,
  SNAPSHOT_COLUMNS,
  statement,
  type Database,
  type Queryable,
} from '@releap/database';
import type { Logger } from 'pino';
import type { SnapshotRow } from '@releap/database';
import { createLifecycle, retryingDeadlocks } from '../../platform/lifecycle/apply.ts';
import { JOB_EVENTS } from '../../platform/lifecycle/jobs.ts';
import { setParents } from '../sandboxes/parents.ts';
import { SNAPSHOT_SQL, type SnapshotChange } from './transition-sql.ts';
import type { SnapshotEvent, SnapshotTransition } from './transitions.ts';

export interface Snapshots {
  /** Applies an event to some snapshots (each id at most once) and returns those that it moved. */
  apply(event: SnapshotEvent, changes: readonly SnapshotChange[]): Promise<SnapshotRow[]>;
  /** The same inside a transaction of the caller, who calls `announce` with the result after the commit. */
  applyWithin(
    on: Queryable,
    event: SnapshotEvent,
    changes: readonly SnapshotChange[],
  ): Promise<{ moved: SnapshotRow[]; next: SnapshotRow[] }>;
  /** Notifies waiting requests and the runners. Call it only after the commit. */
  announce(rows: readonly SnapshotRow[]): void;
  /** Fails pending snapshots of sandboxes that have ended. */
  sandboxesEnded(ids: readonly string[], error: string): Promise<void>;
  /** Starts or fails pending snapshots that other events have missed. */
  sweep(): Promise<void>;
}

export interface SnapshotsOptions {
  database: Database;
  onMoved: (rows: readonly SnapshotRow[]) => void;
  onTransition?: (event: SnapshotEvent, row: SnapshotRow) => void;
  log: Logger;
}

/** Locks the sandboxes first, which serializes the changes of one sandbox's snapshots. $1 snapshots */
const LOCK_SANDBOXES = statement(
  'snapshot-lock-sandboxes',
  `select 1 from sandboxes where id in (select sandbox_id from snapshots where id = any($1::uuid[])) order by id for no key update`,
);
/**
 * The oldest waiting snapshot of each of these sandboxes without one in progress. Its parent is decided only now, and is
 * locked against deletion. $1 sandboxes
 */
const NEXT = statement<{ id: string; parent_id: string | null }>(
  'snapshot-next',
  `select n.id, p.id as parent_id
     from (select distinct on (sandbox_id) id, sandbox_id from snapshots
            where status = 'pending' and sandbox_id = any($1::uuid[]) order by sandbox_id, created_at, id) n
     join snapshots s on s.id = n.id and not s.held
     join sandboxes b on b.id = n.sandbox_id
     left join lateral (select id from snapshots where id = b.parent_snapshot_id and status = 'ready' for key share) p on true`,
);
const TURN = statement<SnapshotRow>(
  'snapshot-turn',
  `with moved as (
     update snapshots s set held = true, parent_id = t.parent_id, updated_at = now()
       from unnest($1::uuid[], $2::uuid[]) as t(id, parent_id) where s.id = t.id and s.status = 'pending' and not s.held
     returning ${columns('s', SNAPSHOT_COLUMNS)}
   ), job as (
     update jobs j set ${JOB_EVENTS.sets('j', 'begin')}, attempts = attempts + 1, runner_id = m.runner_id, updated_at = now()
       from moved m where j.id = m.job_id and j.status = 'queued'
   ) select ${rowColumns('m', SNAPSHOT_COLUMNS)} from moved m`,
);
const OVERDUE = statement<{ id: string }>(
  'snapshots-overdue',
  `select id from snapshots where deadline_at <= now() limit 500`,
);
const ORPHANED = statement<{ id: string; status: string; error: string | null }>(
  'snapshots-orphaned',
  `select s.id, b.status, b.error from snapshots s join sandboxes b on b.id = s.sandbox_id
    where s.status = 'pending' and b.status in ('deleting', 'deleted', 'failed') limit 500`,
);
const PENDING_OF = statement<{ id: string }>(
  'snapshots-pending-of',
  `select id from snapshots where status = 'pending' and sandbox_id = any($1::uuid[])`,
);

export function createSnapshots({ database, onMoved, onTransition, log }: SnapshotsOptions): Snapshots {
  const lifecycle = createLifecycle<SnapshotTransition, SnapshotRow, SnapshotChange>({
    database,
    sql: SNAPSHOT_SQL,
    deadlines: {},
    onMoved,
    onTransition,
  });
  const applyWithin: Snapshots['applyWithin'] = async (on, event, changes) => {
    if (changes.length === 0) return { moved: [], next: [] };
    await queryAll(on, LOCK_SANDBOXES, [changes.map((change) => change.id)]);
    const moved = await lifecycle.applyWithin(on, event, changes);
    if (moved.length === 0) return { moved, next: [] };
    if (event === 'observe:ready')
      await setParents(
        on,
        moved.map((row) => ({ sandboxId: row.sandbox_id, snapshotId: row.id })),
      );
    const waiting = await queryAll(on, NEXT, [moved.map((row) => row.sandbox_id)]);
    const next =
      waiting.length === 0
        ? []
        : await queryAll(on, TURN, [waiting.map((row) => row.id), waiting.map((row) => row.parent_id)]);
    return { moved, next };
  };

  const apply: Snapshots['apply'] = async (event, changes) => {
    if (changes.length === 0) return [];
    const { moved, next } = await retryingDeadlocks(() =>
      database.transaction((client) => applyWithin(client, event, changes)),
    );
    if (moved.length > 0) lifecycle.announce([...moved, ...next]);
    return moved;
  };

  return {
    apply,
    applyWithin,
    announce: lifecycle.announce,
    async sandboxesEnded(ids, error) {
      const pending = await queryAll(database.pool, PENDING_OF, [ids]);
      await apply(
        'sandbox-ended',
        pending.map(({ id }) => ({ id, error })),
      );
    },
    async sweep() {
      const late = await apply(
        'deadline',
        (await queryAll(database.pool, OVERDUE)).map(({ id }) => ({ id, overdue: true })),
      );
      for (const row of late)
        log.warn({ snapshot: row.id, sandbox: row.sandbox_id }, 'a snapshot was not taken in time');
      await apply(
        'sandbox-ended',
        (await queryAll(database.pool, ORPHANED)).map(({ id, status, error }) => ({
          id,
          error:
            status === 'failed'
              ? `its sandbox failed before it was taken${error === null ? '' : `: ${error}`}`
              : SANDBOX_DELETED,
        })),
      );
    },
  };
}

export const SANDBOX_DELETED = 'its sandbox was deleted before it was taken';
