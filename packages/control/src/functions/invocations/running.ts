/**
 * Charges invocations while they run. Gateways report what has run for some time, and how long; the part that was not charged yet is
 * added to the meter of the function, in one statement that may be repeated and arrive late. The end of the invocation charges the
 * rest (store.ts). A synchronous one gets its row with the first report, so that what a gateway has reported stays charged if it dies.
 */
import { queryAll, statement, type Queryable } from '@releap/database';
import { addToMeters, FUNCTION_RATE } from '../../tenancy/billing/function-charges.ts';
import { SKIP_LOCKED } from '../../platform/work/work-table.ts';
import { INVOCATIONS } from './lease.ts';
import type { Prices } from '../../tenancy/billing/prices.ts';
import { givenRows } from './given-rows.ts';
import { INVOCATION_EVENTS } from './transitions.ts';

export interface RunningInvocation {
  /** UUID. */
  id: string;
  /** Of a synchronous one: with the id its key. */
  queuedAt: Date;
  functionId: string;
  versionId: string;
  version: number;
  source: 'invoke' | 'public';
  /** Of an asynchronous invocation: the attempt that runs. Null: a synchronous one. */
  attempt: number | null;
  startedAt: Date;
  /** Of the handler, in milliseconds. */
  elapsedMs: number;
  cold: boolean;
}

const GIVEN = givenRows<RunningInvocation>(3, [
  ['id', 'uuid', (row) => row.id],
  ['queued_at', 'timestamptz', (row) => row.queuedAt],
  ['function_id', 'uuid', (row) => row.functionId],
  ['version_id', 'uuid', (row) => row.versionId],
  ['version', 'integer', (row) => row.version],
  ['source', 'text', (row) => row.source],
  ['attempt', 'integer', (row) => row.attempt],
  ['started_at', 'timestamptz', (row) => row.startedAt],
  ['elapsed_ms', 'double precision', (row) => row.elapsedMs],
  ['cold', 'boolean', (row) => row.cold],
]);

/**
 * An attempt that does not own its invocation any more charges nothing. Nor does a report that is older than the last one, or than
 * the end. $1, $2: prices of a vCPU and of a GiB for a second; $3..: columns
 */
const CHARGE = statement<{ id: string }>(
  'invocations-charge-running',
  `with given as (
  select t.*, f.project_id, round((t.elapsed_ms * 1000)::numeric)::bigint as micros, ${FUNCTION_RATE} as rate
    from ${GIVEN.sql}
    join functions f on f.id = t.function_id
    join function_versions v on v.id = t.version_id and v.function_id = t.function_id
), known as (
  select i.id, i.queued_at, i.function_id, i.project_id, coalesce(i.charged_us, 0) as charged_us, g.attempt, g.version_id, g.version,
         g.micros, g.rate
    from invocations i join given g on g.id = i.id and g.function_id = i.function_id
   where case when g.attempt is null then i.queued_at = g.queued_at and i.reported_at is not null
              else ${INVOCATIONS.owns('i', 'g')} and i.reported_at is null end
   order by i.id for update of i
), moved as (
  update invocations i
     set charged_us = greatest(k.charged_us, k.micros), billed = coalesce(i.billed, 0) + greatest(0, k.micros - k.charged_us) * k.rate,
         version_id = k.version_id, version = k.version, ${INVOCATION_EVENTS.sets('i', 'report')}, finished_at = null, duration_ms = null, error = null,
         reported_at = case when k.attempt is null then now() end
    from known k where i.id = k.id and i.queued_at = k.queued_at
  returning i.id, i.function_id, i.project_id, greatest(0, k.micros - k.charged_us) * k.rate as cost
), begun as (
  insert into invocations (id, queued_at, project_id, function_id, version_id, version, source, status, attempt, started_at, cold,
                           billed, charged_us, reported_at)
  select id, queued_at, project_id, function_id, version_id, version, source, 'running', 1, started_at, cold,
         micros * rate, micros, now()
    from given where attempt is null and id not in (select id from known)
  on conflict do nothing
  returning id, function_id, project_id, billed as cost
), charged as (
  select * from moved union all select * from begun
), metered as (
  ${addToMeters('charged', '0')}
)
select id from charged`,
);

/**
 * Synchronous ones whose gateway reports nothing any more, for $1 milliseconds. It may be cut off: its next report, or the end, still
 * counts.
 */
const ABANDONED = INVOCATIONS.sweeping('abandoned', {
  pick: `select w.id, w.queued_at from invocations w
      where ${INVOCATION_EVENTS.allows('w', 'abandon')} and w.reported_at < now() - $1 * interval '1 millisecond' ${SKIP_LOCKED}`,
  set: `${INVOCATION_EVENTS.sets('w', 'abandon')}, finished_at = w.reported_at, duration_ms = w.charged_us / 1000.0,
          error = 'the gateway that served it has not reported its end'`,
});

/**
 * @param prices as they are in force (`Billing.prices`)
 * @returns ids of those that run as far as the database knows
 */
export async function chargeRunning(
  on: Queryable,
  prices: Pick<Prices, 'functionCpuSecond' | 'functionMemGibSecond'>,
  rows: readonly RunningInvocation[],
): Promise<Set<string>> {
  if (rows.length === 0) return new Set();
  const charged = await queryAll(on, CHARGE, [
    String(prices.functionCpuSecond),
    String(prices.functionMemGibSecond),
    ...GIVEN.values(rows),
  ]);
  return new Set(charged.map(({ id }) => id));
}

/** Ends synchronous invocations whose gateway has died. @returns how many */
export async function endAbandoned(on: Queryable, afterMs: number): Promise<number> {
  return (await queryAll(on, ABANDONED, [afterMs])).length;
}
