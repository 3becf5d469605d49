/**
 * Records invocations that have ended, with their charges, in one statement: it may be repeated, and a server may die at any
 * time. Synchronous invocations are inserted, once for each id and time; asynchronous ones end if the attempt still owns them. What
 * was charged while they ran (running.ts) is not charged again.
 */
import type { InvocationSource } from '@releap/contract';
import { queryAll, statement, type Queryable } from '@releap/database';
import { addToMeters, FUNCTION_RATE } from '../../tenancy/billing/function-charges.ts';
import { INVOCATIONS } from './lease.ts';
import { RECOUNT } from '../../platform/quotas/quota-refusal.ts';
import type { Prices } from '../../tenancy/billing/prices.ts';
import { givenRows } from './given-rows.ts';
import { INVOCATION_EVENTS, OUTCOMES, type InvocationOutcome } from './transitions.ts';

export interface FinishedInvocation {
  /** UUID. */
  id: string;
  queuedAt: Date;
  functionId: string;
  /** The version that served it; null when none did. */
  versionId: string | null;
  version: number | null;
  source: InvocationSource;
  status: InvocationOutcome;
  /** Of an asynchronous invocation: the attempt that ends it. Null: a synchronous one, which has no row yet. */
  attempt: number | null;
  /** When the handler got it; null when it never did. */
  startedAt: Date | null;
  finishedAt: Date;
  /** Of the handler, in milliseconds; null when it never ran. This is what is charged. */
  durationMs: number | null;
  cold: boolean | null;
  error: string | null;
  /** JSON text, of an asynchronous invocation that succeeded. */
  result: string | null;
}

/** Longest error text, in characters. */
const ERROR_MAX = 2_000;
/** PostgreSQL parses JSON recursively and refuses what is nested deeper than its stack. */
const RESULT_DEPTH_MAX = 1_000;
const RESULT_MAX_BYTES = 256 * 1024;

const GIVEN = givenRows<FinishedInvocation>(3, [
  ['id', 'uuid', (row) => row.id],
  ['queued_at', 'timestamptz', (row) => row.queuedAt],
  ['function_id', 'uuid', (row) => row.functionId],
  ['version_id', 'uuid', (row) => row.versionId],
  ['version', 'integer', (row) => row.version],
  ['source', 'text', (row) => row.source],
  ['status', 'text', (row) => row.status],
  ['attempt', 'integer', (row) => row.attempt],
  ['started_at', 'timestamptz', (row) => row.startedAt],
  ['finished_at', 'timestamptz', (row) => row.finishedAt],
  ['duration_ms', 'double precision', (row) => row.durationMs],
  ['cold', 'boolean', (row) => row.cold],
  ['error', 'text', (row) => (row.error === null ? null : storableText(row.error))],
  ['result', 'text', (row) => row.result],
]);

const ENDS = Object.fromEntries(OUTCOMES.map((outcome) => [`end:${outcome}`, `g.status = '${outcome}'`]));

/**
 * $1, $2: prices of a vCPU and of a GiB for a second; $3..: columns. The project is the function's, whatever the caller says. A
 * function that was deleted meanwhile has no invocations and is charged nothing more. Results of an organization are stored if all of
 * them are within its quota of stored bytes.
 */
const RECORD = statement<{ id: string }>(
  'invocations-record',
  `with given as (
  select t.*, f.project_id, coalesce(round((t.duration_ms * 1000)::numeric), 0) as micros, coalesce(${FUNCTION_RATE}, 0) as rate
    from ${GIVEN.sql}
    join functions f on f.id = t.function_id
    left join function_versions v on v.id = t.version_id and v.function_id = t.function_id
), known as (
  select i.id, i.queued_at, coalesce(i.charged_us, 0) as charged_us, coalesce(i.billed, 0) as billed
    from invocations i join given g on g.id = i.id and g.queued_at = i.queued_at and g.function_id = i.function_id
   where case when g.attempt is null then i.reported_at is not null else ${INVOCATIONS.owns('i', 'g')} end
   order by i.id for update of i
), priced as (
  select g.*, k.id is not null as is_known, coalesce(k.billed, 0) as before,
         greatest(0, g.micros - coalesce(k.charged_us, 0)) * g.rate as cost
    from given g left join known k on k.id = g.id and k.queued_at = g.queued_at
), results as materialized (
  select org_id, try_quota(org_id, 'stored_bytes', bytes, '${RECOUNT}') as exceeded
    from (select p.org_id, sum(octet_length(g.result)) as bytes
            from priced g join projects p on p.id = g.project_id
           where g.is_known and g.result is not null group by p.org_id order by p.org_id offset 0) taken
), stored as (
  insert into invocations (id, queued_at, project_id, function_id, version_id, version, source, status, attempt, started_at,
                           finished_at, duration_ms, cold, error, billed)
  select id, queued_at, project_id, function_id, version_id, version, source, status, 1, started_at,
         finished_at, duration_ms, cold, error, cost
    from priced where attempt is null and not is_known
  on conflict do nothing
  returning id, function_id, project_id, billed as cost
), ended as (
  update invocations i
     set ${INVOCATION_EVENTS.sets('i', ENDS)}, version_id = g.version_id, version = g.version, lease_until = null, reported_at = null,
         finished_at = g.finished_at, started_at = coalesce(g.started_at, i.started_at), duration_ms = g.duration_ms, cold = g.cold,
         error = case when r.exceeded is null then g.error
                      else format('the result of %s bytes is not kept: the quota of %s stored bytes is used up',
                                  octet_length(g.result), r.exceeded ->> 'limit') end,
         result = case when r.exceeded is null then g.result::json end, billed = g.before + g.cost, charged_us = null
    from priced g join projects p on p.id = g.project_id
         left join results r on r.org_id = p.org_id and g.result is not null
   where g.is_known and i.id = g.id and i.queued_at = g.queued_at
  returning i.id, i.function_id, i.project_id, g.cost, i.queued_at,
            case when r.exceeded is null then octet_length(g.result) end as result_bytes
), kept as (
  insert into invocation_result_bytes as b (project_id, day, bytes)
  select project_id, (queued_at at time zone 'utc')::date, sum(result_bytes) from ended
   where result_bytes is not null group by 1, 2 order by 1, 2
  on conflict (project_id, day) do update set bytes = b.bytes + excluded.bytes
), bodies as (
  delete from invocation_payloads where invocation_id in (select id from ended)
), recorded as (
  select * from stored union all select id, function_id, project_id, cost from ended
), metered as (
  ${addToMeters('recorded', 'count(*)')}
)
select id from recorded`,
);

/**
 * @param prices as they are in force (`Billing.prices`)
 * @returns ids of those that this call has recorded. The others were recorded before, are owned by a later attempt, or their
 * function is deleted
 * @throws RangeError for a row that can never be stored: repeating it is of no use
 */
export async function recordFinished(
  on: Queryable,
  prices: Pick<Prices, 'functionCpuSecond' | 'functionMemGibSecond'>,
  rows: readonly FinishedInvocation[],
): Promise<Set<string>> {
  if (rows.length === 0) return new Set();
  for (const row of rows) check(row);
  const recorded = await queryAll(on, RECORD, [
    String(prices.functionCpuSecond),
    String(prices.functionMemGibSecond),
    ...GIVEN.values(rows),
  ]);
  return new Set(recorded.map((row) => row.id));
}

/** Text of a handler may have characters that PostgreSQL does not store. */
function storableText(text: string): string {
  return text.slice(0, ERROR_MAX).replaceAll('\0', '\uFFFD').toWellFormed();
}

function check(row: FinishedInvocation): void {
  const { durationMs, result, attempt } = row;
  if (durationMs !== null && !(durationMs >= 0 && durationMs <= Number.MAX_SAFE_INTEGER))
    throw new RangeError(`the duration of invocation ${row.id} must be at least 0 ms, but was ${durationMs}`);
  if (result === null) return;
  if (attempt === null) throw new RangeError(`invocation ${row.id} is synchronous and stores no result`);
  if (!isStorableResult(result))
    throw new RangeError(`the result of invocation ${row.id} is not JSON that can be stored`);
}

/** Whether a handler's answer is kept as the result: JSON of at most 256 KiB that is not nested too deep for PostgreSQL. */
export function isStorableResult(text: string): boolean {
  if (Buffer.byteLength(text) > RESULT_MAX_BYTES) return false;
  try {
    JSON.parse(text);
  } catch {
    return false;
  }
  return nesting(text) <= RESULT_DEPTH_MAX;
}

/** Levels of arrays and objects in valid JSON. */
function nesting(text: string): number {
  let depth = 0;
  let deepest = 0;
  let inString = false;
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at];
    if (inString) {
      if (char === '\\') at += 1;
      else if (char === '"') inString = false;
    } else if (char === '"') inString = true;
    else if (char === '[' || char === '{') deepest = Math.max(deepest, ++depth);
    else if (char === ']' || char === '}') depth -= 1;
  }
  return deepest;
}
