/** The columns that a sandbox's transitions write. `lifecycle/sql.ts` generates the statements. */
import { SANDBOX_COLUMNS, type SandboxRow } from '@releap/database';
import { JOB_EVENTS } from '../../platform/lifecycle/jobs.ts';
import { hasEffect } from '../../platform/lifecycle/machine.ts';
import { literal, transitionSql, type TransitionInput } from '../../platform/lifecycle/sql.ts';
import { MACHINE, WITHOUT_NETWORK, type Transition } from './transitions.ts';

/** One sandbox to which an event is applied. */
export interface Change extends TransitionInput {
  /** Guard: only if it belongs to this project. */
  project_id?: string;
  /** Guard: only if it has this kind of owner. */
  owner_kind?: SandboxRow['owner_kind'];
  /** Guard: only in this region. */
  region?: string;
  /** Guard: only if it is placed on this runner. */
  runner_id?: string;
  /** Guard: only while this is its pending fork. */
  pending_fork?: string;
  /** Guard: only while this is its move. */
  move_id?: string;
  /** For `move`. */
  begin_move?: string;
  /** The runner, for `place` and `moved`. */
  place_on?: string;
  vm_ip?: string;
  host_ip?: string;
  port_map?: unknown[];
  manifest_name?: string;
  /** False when the memory that was saved is gone or damaged. */
  memory?: boolean;
  /** Why the runner cannot resume the memory that was saved as its host is now. */
  memory_blocked?: string;
}

function reason(row: Transition): string | undefined {
  // A deletion by the service gives its reason.
  if (row.on === 'delete') return 'coalesce(t.error, s.error)';
  if (row.to === 'failed' || row.to === 'lost' || row.error !== undefined)
    return `coalesce(t.error, ${literal(row.error ?? 'no reason was given')})`;
  // It has recovered, or the requested change failed.
  if (hasEffect(row, 'check-memory'))
    return `case when t.memory_blocked is distinct from s.memory_blocked then t.memory_blocked else s.error end`;
  if (row.to === 'running' || row.to === 'stopped' || row.to === 'paused') return 't.error';
  // A new attempt clears the error of the last one.
  return row.to === 'booting' || row.to === 'stopping' || row.to === 'pausing' ? 'null::text' : undefined;
}

function memory(row: Transition): string | undefined {
  if (hasEffect(row, 'memory')) return 'coalesce(t.memory, true)';
  if (hasEffect(row, 'check-memory')) return 's.has_memory and coalesce(t.memory, true)';
  return hasEffect(row, 'forget-memory') ? 'false' : undefined;
}

function memoryBlocked(row: Transition): string | undefined {
  if (hasEffect(row, 'memory', 'check-memory')) return 't.memory_blocked';
  return hasEffect(row, 'forget-memory', 'use-memory') ? 'null::text' : undefined;
}

function startFrom(row: Transition): string | undefined {
  if (hasEffect(row, 'use-memory')) return literal('memory');
  return hasEffect(row, 'memory', 'forget-memory') ? literal('disk') : undefined;
}

function network(row: Transition, column: string, empty: string): string | undefined {
  if (row.to === 'same') return undefined;
  return (WITHOUT_NETWORK as readonly string[]).includes(row.to)
    ? empty
    : `coalesce(t.${column}, s.${column})`;
}

/**
 * The create job ends with the start of its sandbox, in the same statement. An ended job is final: a later stop or
 * failure of the sandbox does not change it.
 */
const JOB = `update jobs j set
    ${JOB_EVENTS.sets('j', {
      fail: `m.status in ('failed', 'lost', 'deleting', 'deleted') or (m.status in ('paused', 'stopped') and m.error is not null)`,
      finish: `m.status in ('running', 'paused', 'stopped')`,
      begin: 'true',
    })},
    attempts = case when j.status = 'queued' and m.runner_id is not null then j.attempts + 1 else j.attempts end,
    runner_id = m.runner_id,
    error = case when m.status in ('failed', 'lost', 'paused', 'stopped') then m.error
                 when m.status in ('deleting', 'deleted') then 'the sandbox was deleted before it ran' end,
    finished_at = case when m.status in ('assigned', 'building', 'booting', 'stopping', 'pausing') then null else now() end,
    updated_at = now()
  from moved m where j.id = m.job_id and ${JOB_EVENTS.allows('j', 'fail', 'finish', 'begin')}`;

/** Erases the environment of a deleted sandbox. */
const ERASE = `delete from sandbox_env e using moved m where e.sandbox_id = m.id and m.status = 'deleted'`;

export const SANDBOX_SQL = transitionSql<Transition, SandboxRow>(MACHINE, {
  columns: SANDBOX_COLUMNS,
  input: {
    project_id: 'uuid',
    owner_kind: 'text',
    region: 'text',
    runner_id: 'uuid',
    pending_fork: 'uuid',
    move_id: 'uuid',
    begin_move: 'uuid',
    place_on: 'uuid',
    vm_ip: 'text',
    host_ip: 'text',
    port_map: 'jsonb',
    manifest_name: 'text',
    memory: 'boolean',
    memory_blocked: 'text',
  },
  guards: ['project_id', 'owner_kind', 'region', 'runner_id', 'pending_fork', 'move_id'],
  // Keeps the disk of a persistent sandbox that has run, and releases everything else.
  wanted: {
    reclaim: `case when s.persistent and s.manifest_name is not null then 'stopped' else 'deleted' end`,
  },
  set: {
    error: reason,
    runner_id: (row) =>
      row.on === 'place' || hasEffect(row, 'relocate') ? 'coalesce(t.place_on, s.runner_id)' : undefined,
    move_id: (row) =>
      hasEffect(row, 'move') ? 't.begin_move' : hasEffect(row, 'end-move') ? 'null' : undefined,
    held: (row) => (hasEffect(row, 'assign') ? 'true' : hasEffect(row, 'release') ? 'false' : undefined),
    has_memory: memory,
    memory_blocked: memoryBlocked,
    start_from: startFrom,
    vm_ip: (row) => network(row, 'vm_ip', 'null'),
    host_ip: (row) => network(row, 'host_ip', 'null'),
    port_map: (row) => network(row, 'port_map', `'[]'::jsonb`),
    pending_fork: (row) => (hasEffect(row, 'fork-taken') ? 'null' : undefined),
    env_bytes: (row) => (row.to === 'deleted' ? '0' : undefined),
    spot_evicted_at: (row) => (hasEffect(row, 'evicted') ? 'now()' : undefined),
    deleted_at: (row) => (row.to === 'deleted' ? 'now()' : undefined),
  },
  always: { manifest_name: 'coalesce(t.manifest_name, s.manifest_name)' },
  alongside: (rows) => ({
    job: JOB,
    ...(rows.some((row) => row.to === 'deleted') ? { erased: ERASE } : {}),
  }),
});
