/** The columns that a snapshot's transitions write. `lifecycle/sql.ts` generates the statements. */
import { SNAPSHOT_COLUMNS, type SnapshotRow } from '@releap/database';
import { JOB_EVENTS } from '../../platform/lifecycle/jobs.ts';
import { hasEffect } from '../../platform/lifecycle/machine.ts';
import { transitionSql, type TransitionInput } from '../../platform/lifecycle/sql.ts';
import { SNAPSHOT_MACHINE, type SnapshotTransition } from './transitions.ts';

/** One snapshot to which an event is applied. */
export interface SnapshotChange extends TransitionInput {
  /** Guard: only if this runner has it. */
  runner_id?: string;
  no_changes?: boolean;
  artifact_ref?: string;
  manifest_name?: string;
  fc_version?: string;
  cpu_marker?: string;
  mem_bytes?: number;
  disk_bytes?: number;
}

/** Columns that the runner reports, with their SQL types. */
const REPORTED = {
  no_changes: 'boolean',
  artifact_ref: 'text',
  manifest_name: 'text',
  fc_version: 'text',
  cpu_marker: 'text',
  mem_bytes: 'bigint',
  disk_bytes: 'bigint',
} as const;

const JOB = `update jobs j set
      ${JOB_EVENTS.sets('j', { finish: `m.status = 'ready'`, fail: 'true' })},
      error = case m.status when 'failed' then m.error when 'deleted' then 'the snapshot was deleted before it was taken' end,
      finished_at = now(), updated_at = now()
    from moved m where j.id = m.job_id and ${JOB_EVENTS.allows('j', 'finish', 'fail')}`;

/** Erases the environment of a deleted snapshot. */
const ERASE = `delete from snapshot_env e using moved m where e.snapshot_id = m.id and m.desired = 'deleted'`;

export const SNAPSHOT_SQL = transitionSql<SnapshotTransition, SnapshotRow>(SNAPSHOT_MACHINE, {
  columns: SNAPSHOT_COLUMNS,
  input: { runner_id: 'uuid', ...REPORTED },
  guards: ['runner_id'],
  set: {
    held: (row) => (hasEffect(row, 'release') ? 'false' : undefined),
    env_bytes: (row) => (row.wants === 'deleted' ? '0' : undefined),
    deleted_at: (row) => (row.to === 'deleted' ? 'now()' : undefined),
  },
  always: Object.fromEntries(
    Object.keys(REPORTED).map((column) => [column, `coalesce(t.${column}, s.${column})`]),
  ),
  alongside: (rows) => ({
    job: JOB,
    ...(rows.some((row) => row.wants === 'deleted') ? { erased: ERASE } : {}),
  }),
});
