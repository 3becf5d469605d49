/** Turns the rows of the transition table into SQL: one conditional UPDATE a trigger. */
import {
  columns,
  rowColumns,
  SANDBOX_COLUMNS,
  statement,
  type SandboxRow,
  type Statement,
} from '@releap/database';
import {
  CONDITIONS,
  TRANSIENT,
  TRANSITIONS,
  TRIGGERS,
  WITHOUT_NETWORK,
  type StateDeadlines,
  type Transition,
  type Trigger,
} from './transitions.ts';

/** One sandbox that a trigger is pulled for. Guards that are given must match, or nothing happens. */
export interface Change {
  id: string;
  /** Guard: only if it belongs to this project. */
  project_id?: string;
  /** Guard: only if it is owned so. */
  owner_kind?: SandboxRow['owner_kind'];
  /** Guard: only in this region. */
  region?: string;
  /** Guard: only in this generation. */
  generation?: number;
  /** Guard: only if it is placed on this runner. */
  runner_id?: string;
  /** Guard: only while its deadline is over. */
  overdue?: true;
  /** Where it goes, for `place`. */
  place_on?: string;
  /** Why it failed, is lost, or is not what was wanted. */
  error?: string;
  vm_ip?: string;
  host_ip?: string;
  port_map?: unknown[];
  manifest_name?: string;
  /** False when the runner cannot use the memory that was kept. */
  memory?: boolean;
}

const INPUT = `jsonb_to_recordset($1::jsonb) as t(id uuid, project_id uuid, owner_kind text, region text, generation integer, runner_id uuid,
  overdue boolean, place_on uuid, error text, vm_ip text, host_ip text, port_map jsonb, manifest_name text, memory boolean)`;

const GUARDS = `(t.project_id is null or s.project_id = t.project_id)
  and (t.owner_kind is null or s.owner_kind = t.owner_kind)
  and (t.region is null or s.region = t.region)
  and (t.generation is null or s.generation = t.generation)
  and (t.runner_id is null or s.runner_id = t.runner_id)
  and (t.overdue is null or s.deadline_at <= now())`;

const text = (value: string): string => `'${value.replaceAll("'", "''")}'`;
const list = (values: readonly string[]): string => `(${values.map(text).join(', ')})`;

/** True for exactly the sandboxes that this row applies to. */
function applies(row: Transition): string {
  return [`s.status in ${list(row.from)}`, ...(row.when ?? []).map((name) => CONDITIONS[name].sql)].join(
    ' and ',
  );
}

function choose(
  rows: readonly Transition[],
  value: (row: Transition) => string | undefined,
  otherwise: string,
): string {
  const arms = rows.flatMap((row) => {
    const result = value(row);
    return result === undefined || result === otherwise ? [] : [`when ${applies(row)} then ${result}`];
  });
  return arms.length === 0 ? otherwise : `case ${arms.join('\n      ')} else ${otherwise} end`;
}

function deadline(row: Transition): string | undefined {
  if (row.to === 'same') return undefined;
  if (!(TRANSIENT as readonly string[]).includes(row.to)) return 'null';
  return `now() + ($2::jsonb ->> ${text(row.to)})::integer * interval '1 millisecond'`;
}

function wanted(row: Transition): string | undefined {
  if (row.wants === undefined || row.wants === 'same') return undefined;
  if (row.wants === 'reclaim')
    return `case when s.persistent and s.manifest_name is not null then 'stopped' else 'deleted' end`;
  return text(row.wants);
}

const has = (row: Transition, ...effects: string[]): boolean =>
  (row.effects ?? []).some((effect) => effects.includes(effect));

function reason(row: Transition): string | undefined {
  // Whoever deletes it for a reason of his own says so.
  if (row.on === 'delete') return 'coalesce(t.error, s.error)';
  if (row.to === 'failed' || row.to === 'lost' || row.error !== undefined)
    return `coalesce(t.error, ${text(row.error ?? 'no reason was given')})`;
  // It is well again, or what was wanted of it could not be had.
  if (row.to === 'running' || row.to === 'stopped' || row.to === 'paused') return 't.error';
  // A new try: what the last one ended with is over.
  return row.to === 'booting' || row.to === 'stopping' || row.to === 'pausing' ? 'null::text' : undefined;
}

function memory(row: Transition): string | undefined {
  if (has(row, 'memory')) return 'coalesce(t.memory, true)';
  if (has(row, 'check-memory')) return 's.has_memory and coalesce(t.memory, true)';
  return has(row, 'forget-memory') ? 'false' : undefined;
}

function startFrom(row: Transition): string | undefined {
  if (has(row, 'use-memory')) return text('memory');
  return has(row, 'memory', 'forget-memory') ? text('disk') : undefined;
}

function network(row: Transition, column: string, empty: string): string | undefined {
  if (row.to === 'same') return undefined;
  return (WITHOUT_NETWORK as readonly string[]).includes(row.to)
    ? empty
    : `coalesce(t.${column}, s.${column})`;
}

/** Rows that write something. The others say only that a request is already fulfilled. */
export function writing(trigger: Trigger): Transition[] {
  return TRANSITIONS.filter(
    (row) => row.on === trigger && (row.to !== 'same' || (row.effects ?? []).length > 0),
  );
}

/**
 * The create job ends with the start of its sandbox, in the same statement. A job that has ended is never
 * touched again, so a later stop or failure of the sandbox does not change it.
 */
const JOB = `update jobs j set
    status = case when m.status in ('failed', 'lost', 'deleting', 'deleted') then 'failed'
                  when m.status in ('paused', 'stopped') and m.error is not null then 'failed'
                  when m.status in ('running', 'paused', 'stopped') then 'done' else 'running' end,
    attempts = case when j.status = 'queued' and m.runner_id is not null then j.attempts + 1 else j.attempts end,
    runner_id = m.runner_id,
    error = case when m.status in ('failed', 'lost', 'paused', 'stopped') then m.error
                 when m.status in ('deleting', 'deleted') then 'the sandbox was deleted before it ran' end,
    finished_at = case when m.status in ('assigned', 'building', 'booting', 'stopping', 'pausing') then null else now() end,
    updated_at = now()
  from moved m where j.id = m.job_id and j.status in ('queued', 'running')`;

/** Nobody needs the environment of a deleted one. */
const ERASE = `, erased as (
  delete from sandbox_env e using moved m where e.sandbox_id = m.id and m.status = 'deleted'
)`;

function sql(trigger: Trigger): string {
  const rows = writing(trigger);
  const status = choose(rows, (row) => (row.to === 'same' ? undefined : text(row.to)), 's.status');
  return `with moved as (
  update sandboxes s set
    status = ${status},
    desired = ${choose(rows, wanted, 's.desired')},
    generation = ${choose(rows, (row) => (row.wants === undefined ? undefined : 's.generation + 1'), 's.generation')},
    deadline_at = ${choose(rows, deadline, 's.deadline_at')},
    error = ${choose(rows, reason, 's.error')},
    runner_id = ${trigger === 'place' ? 'coalesce(t.place_on, s.runner_id)' : 's.runner_id'},
    held = ${choose(rows, (row) => (has(row, 'hold') ? 'true' : has(row, 'release') ? 'false' : undefined), 's.held')},
    has_memory = ${choose(rows, memory, 's.has_memory')},
    start_from = ${choose(rows, startFrom, 's.start_from')},
    vm_ip = ${choose(rows, (row) => network(row, 'vm_ip', 'null'), 's.vm_ip')},
    host_ip = ${choose(rows, (row) => network(row, 'host_ip', 'null'), 's.host_ip')},
    port_map = ${choose(rows, (row) => network(row, 'port_map', `'[]'::jsonb`), 's.port_map')},
    manifest_name = coalesce(t.manifest_name, s.manifest_name),
    env_bytes = ${choose(rows, (row) => (row.to === 'deleted' ? '0' : undefined), 's.env_bytes')},
    spot_evicted_at = ${choose(rows, (row) => (has(row, 'evicted') ? 'now()' : undefined), 's.spot_evicted_at')},
    deleted_at = ${choose(rows, (row) => (row.to === 'deleted' ? 'now()' : undefined), 's.deleted_at')},
    updated_at = now()
  from ${INPUT}
  where s.id = t.id and $2::jsonb is not null and ${GUARDS}
    and (${rows.map((row) => `(${applies(row)})`).join('\n      or ')})
  returning ${columns('s', SANDBOX_COLUMNS)}
), job as (
  ${JOB}
)${rows.some((row) => row.to === 'deleted') ? ERASE : ''}
select ${rowColumns('m', SANDBOX_COLUMNS)} from moved m`;
}

const STATEMENTS = new Map<Trigger, Statement<SandboxRow>>(
  TRIGGERS.filter((trigger) => writing(trigger).length > 0).map((trigger) => [
    trigger,
    statement<SandboxRow>(`sandbox-${trigger}`, sql(trigger)),
  ]),
);

/** The statement of a trigger and its parameters. Undefined for a trigger that never writes (`fork`). */
export function transitionStatement(
  trigger: Trigger,
  changes: readonly Change[],
  deadlines: StateDeadlines,
): { statement: Statement<SandboxRow>; values: [string, string] } | undefined {
  const found = STATEMENTS.get(trigger);
  if (found === undefined) return undefined;
  return { statement: found, values: [JSON.stringify(changes), JSON.stringify(deadlines)] };
}
