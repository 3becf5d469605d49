/** Turns the rows of the snapshots' table into SQL: one conditional UPDATE a trigger. */
import {
  columns,
  rowColumns,
  SNAPSHOT_COLUMNS,
  statement,
  type SnapshotRow,
  type Statement,
} from '@releap/database';
import { SNAPSHOT_TRANSITIONS, type SnapshotTransition, type SnapshotTrigger } from './transitions.ts';

/** One snapshot that a trigger is pulled for. Guards that are given must match, or nothing happens. */
export interface SnapshotChange {
  id: string;
  /** Guard: only in this generation. */
  generation?: number;
  /** Guard: only if this runner keeps it. */
  runner_id?: string;
  /** Guard: only while its deadline is over. */
  overdue?: true;
  error?: string;
  no_changes?: boolean;
  artifact_ref?: string;
  manifest_name?: string;
  fc_version?: string;
  cpu_marker?: string;
  mem_bytes?: number;
  disk_bytes?: number;
}

const INPUT = `jsonb_to_recordset($1::jsonb) as t(id uuid, generation integer, runner_id uuid, overdue boolean, error text,
  no_changes boolean, artifact_ref text, manifest_name text, fc_version text, cpu_marker text, mem_bytes bigint, disk_bytes bigint)`;

const GUARDS = `(t.generation is null or s.generation = t.generation)
  and (t.runner_id is null or s.runner_id = t.runner_id)
  and (t.overdue is null or s.deadline_at <= now())`;

const text = (value: string): string => `'${value.replaceAll("'", "''")}'`;
const applies = (row: SnapshotTransition): string => `s.status in (${row.from.map(text).join(', ')})`;

function choose(
  rows: readonly SnapshotTransition[],
  value: (row: SnapshotTransition) => string | undefined,
  otherwise: string,
): string {
  const arms = rows.flatMap((row) => {
    const result = value(row);
    return result === undefined ? [] : [`when ${applies(row)} then ${result}`];
  });
  return arms.length === 0 ? otherwise : `case ${arms.join(' ')} else ${otherwise} end`;
}

const TOLD = ['artifact_ref', 'manifest_name', 'fc_version', 'cpu_marker', 'mem_bytes', 'disk_bytes'];

/** Nobody needs the environment of one that is to go. */
const ERASE = `, erased as (
  delete from snapshot_env e using moved m where e.snapshot_id = m.id and m.desired = 'deleted'
)`;

function sql(trigger: SnapshotTrigger): string {
  const rows = SNAPSHOT_TRANSITIONS.filter((row) => row.on === trigger);
  const settled = (row: SnapshotTransition): boolean => row.to !== 'same';
  return `with moved as (
  update snapshots s set
    status = ${choose(rows, (row) => (row.to === 'same' ? undefined : text(row.to)), 's.status')},
    desired = ${choose(rows, (row) => row.wants && text(row.wants), 's.desired')},
    generation = ${choose(rows, (row) => row.wants && 's.generation + 1', 's.generation')},
    deadline_at = ${choose(rows, (row) => (settled(row) ? 'null' : undefined), 's.deadline_at')},
    error = ${choose(rows, (row) => (row.to === 'failed' ? `coalesce(t.error, ${text(row.error ?? 'no reason was given')})` : undefined), 's.error')},
    held = ${choose(rows, (row) => (row.effects?.includes('release') ? 'false' : undefined), 's.held')},
    env_bytes = ${choose(rows, (row) => (row.wants === 'deleted' ? '0' : undefined), 's.env_bytes')},
    deleted_at = ${choose(rows, (row) => (row.to === 'deleted' ? 'now()' : undefined), 's.deleted_at')},
    no_changes = coalesce(t.no_changes, s.no_changes),
    ${TOLD.map((column) => `${column} = coalesce(t.${column}, s.${column})`).join(', ')},
    updated_at = now()
  from ${INPUT}
  where s.id = t.id and ${GUARDS} and (${rows.map((row) => applies(row)).join(' or ')})
  returning ${columns('s', SNAPSHOT_COLUMNS)}
), job as (
  update jobs j set
      status = case m.status when 'ready' then 'done' else 'failed' end,
      error = case m.status when 'failed' then m.error when 'deleted' then 'the snapshot was deleted before it was taken' end,
      finished_at = now(), updated_at = now()
    from moved m where j.id = m.job_id and j.status in ('queued', 'running')
)${rows.some((row) => row.wants === 'deleted') ? ERASE : ''}
select ${rowColumns('m', SNAPSHOT_COLUMNS)} from moved m`;
}

const TRIGGERS = [...new Set(SNAPSHOT_TRANSITIONS.map((row) => row.on))];
const STATEMENTS = new Map<SnapshotTrigger, Statement<SnapshotRow>>(
  TRIGGERS.map((trigger) => [trigger, statement<SnapshotRow>(`snapshot-${trigger}`, sql(trigger))]),
);

export function snapshotStatement(trigger: SnapshotTrigger): Statement<SnapshotRow> {
  const found = STATEMENTS.get(trigger);
  if (found === undefined) throw new Error(`no snapshot has a row for ${trigger}`);
  return found;
}
