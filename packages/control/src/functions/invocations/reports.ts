/**
 * Numbers over the invocations of functions, which count by the time at which they were received. Whole hours are read from their sums
 * (hours.ts), parts of hours, and what has not ended, from the log. So counts, sums and costs are exact. Percentiles are exact for
 * few invocations, which are read from the log, and otherwise from the histograms (histogram.ts).
 */
import { formatAmount, type FunctionReportItem, type FunctionSeriesPoint } from '@releap/contract';
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import { FUNCTION_SCALE } from '../../tenancy/billing/function-charges.ts';
import type { Range } from '../../compute/usage/history.ts';
import { percentile, type Histogram } from './histogram.ts';
import { SUMS } from './hours.ts';

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
/** Up to so many durations in a report are read one by one. */
export const EXACT_MAX = 10_000;

/** As a row of `invocation_hours`. */
const RAW = `date_bin('1 hour', queued_at, 'epoch') as hour, function_id, 1 as total, (status = 'succeeded')::integer as succeeded,
       (status = 'failed')::integer as failed, (status = 'timeout')::integer as timeout, (status = 'shed')::integer as shed,
       coalesce(cold, false)::integer as cold, coalesce(not cold, false)::integer as warm, (duration_ms is not null)::integer as timed,
       coalesce(duration_ms::numeric, 0) as sum_ms, coalesce(billed, 0) as billed,
       case when duration_ms is null then '{}' else array[duration_bucket(duration_ms)] end as buckets, array[1::bigint] as bucket_counts`;
/** Hours that are wholly counted begin here: what was received before the sums were kept is in the log. */
const LOW = 'least(greatest($4::timestamptz, invocation_hours_since()), $5::timestamptz)';

/** Rows as of `invocation_hours`. $2 from, $3 to, $4 and $5 whole hours in it; both $3 if there are none */
const parts = (scope: string, functions: string): string =>
  `select hour, function_id, ${SUMS.join(', ')}, buckets, bucket_counts
     from invocation_hours where ${scope} and hour >= ${LOW} and hour < $5
   union all
   select ${RAW} from invocations where ${scope} and queued_at >= $2 and queued_at < ${LOW}
   union all
   select ${RAW} from invocations where ${scope} and queued_at >= $5 and queued_at < $3
   union all
   select ${RAW} from invocations where status = 'pending' and ${functions} and queued_at >= ${LOW} and queued_at < $5
   union all
   select ${RAW} from invocations where status = 'running' and ${scope} and queued_at >= ${LOW} and queued_at < $5`;
const OF_PROJECT = [
  'project_id = $1',
  'function_id in (select id from functions where project_id = $1)',
] as const;
const OF_FUNCTION = ['function_id = $1', 'function_id = $1'] as const;

const count = (columns: string): string => `sum(${columns})::double precision`;
const AVERAGE = '(case when sum(timed) > 0 then sum(sum_ms) / sum(timed) end)::double precision';

/** $1 function, $2.. range, $6 width */
const SERIES = statement<Omit<FunctionSeriesPoint, 'bucket'> & { bucket: Date }>(
  'function-series',
  `select date_bin($6::interval, hour, 'epoch') as bucket, ${count('total')} as total, ${count('succeeded')} as succeeded,
          ${count('failed + timeout')} as errors, ${count('shed')} as shed, ${count('cold')} as cold, ${count('warm')} as warm,
          ${AVERAGE} as avg_ms
     from (${parts(...OF_FUNCTION)}) h
    group by 1 having sum(total) > 0 order by 1`,
);

interface Percentiles {
  p50_ms: number | null;
  p95_ms: number | null;
  p99_ms: number | null;
}
interface ReportRow extends Omit<FunctionReportItem, 'cold_ratio' | keyof Percentiles>, Histogram {
  function_id: string;
  timed: number;
  billed: string;
}

/** $1 project or function, $2.. range */
const report = (name: string, scope: readonly [string, string]) =>
  statement<ReportRow>(
    name,
    `with parts as materialized (${parts(...scope)}), sums as (
  select function_id, ${['total', 'succeeded', 'failed', 'timeout', 'shed', 'cold', 'warm', 'timed', 'sum_ms']
    .map((column) => `${count(column)} as ${column}`)
    .join(', ')},
         ${AVERAGE} as avg_ms, sum(billed)::text as billed
    from parts group by function_id having sum(total) > 0
), histograms as (
  select function_id, array_agg(bucket order by bucket) as buckets, array_agg(n order by bucket) as counts
    from (select function_id, bucket, sum(n)::double precision as n
            from parts cross join lateral unnest(buckets, bucket_counts) as b(bucket, n)
           where bucket is not null group by 1, 2 having sum(n) > 0) b
   group by function_id
)
select f.name, s.*, coalesce(h.buckets, '{}') as buckets, coalesce(h.counts, '{}') as counts
  from sums s join functions f on f.id = s.function_id left join histograms h on h.function_id = s.function_id
 order by f.name`,
  );
const REPORT_OF_PROJECT = report('function-report', OF_PROJECT);
const REPORT_OF_FUNCTION = report('function-report-one', OF_FUNCTION);

/** $1 project, $2 from, $3 to, $4 functions */
const EXACT = statement<Percentiles & { function_id: string }>(
  'function-report-percentiles',
  `select function_id, percentile_cont(0.5) within group (order by duration_ms) as p50_ms,
          percentile_cont(0.95) within group (order by duration_ms) as p95_ms,
          percentile_cont(0.99) within group (order by duration_ms) as p99_ms
     from invocations
    where project_id = $1 and queued_at >= $2 and queued_at < $3 and function_id = any($4) and duration_ms is not null
    group by function_id`,
);

/** $1 project, $2 name */
const NAMED = statement<{ id: string }>(
  'function-report-named',
  'select id from functions where project_id = $1 and name = $2',
);

export interface ReportRange extends Range {
  /** Up to now: the present hour is read as a whole. */
  isOpen: boolean;
  /** The log may lack what is older. */
  logSince: Date;
}

/** @param days retention of the log; 0 keeps it */
export function reportRange(range: Range, isOpen: boolean, days: number, now = Date.now()): ReportRange {
  return { ...range, isOpen, logSince: new Date(days === 0 ? 0 : now - days * DAY_MS) };
}

/** $2 to $5. An hour that the log may lack is counted as a whole. */
function bounds({ from, to, isOpen, logSince }: ReportRange): [Date, Date, Date, Date] {
  const whole = (time: Date, round: (hours: number) => number): Date =>
    new Date(round(time.getTime() / HOUR_MS) * HOUR_MS);
  const low = whole(from, from < logSince ? Math.floor : Math.ceil);
  const high = whole(to, isOpen || to < logSince ? Math.ceil : Math.floor);
  return low < high ? [from, to, low, high] : [from, to, to, to];
}

/** Buckets with invocations that were received in the range, oldest first. */
export async function readSeries(
  on: Queryable,
  functionId: string,
  resolution: 'h' | 'd',
  range: ReportRange,
): Promise<FunctionSeriesPoint[]> {
  const width = resolution === 'h' ? '1 hour' : '1 day';
  const rows = await queryAll(on, SERIES, [functionId, ...bounds(range), width]);
  return rows.map((row) => ({ ...row, bucket: row.bucket.toISOString() }));
}

/** Functions with invocations that were received in the range, by name, and what all of these have cost. */
export async function readFunctionReport(
  on: Queryable,
  projectId: string,
  range: ReportRange,
  name: string | null,
  exactMax = EXACT_MAX,
): Promise<{ billed_credits: string; functions: FunctionReportItem[] }> {
  const rows = await readRows(on, projectId, range, name);
  const timed = rows.reduce((sum, row) => sum + row.timed, 0);
  const isExact = timed <= exactMax && range.from >= range.logSince;
  const ids = rows.map((row) => row.function_id);
  const exact = new Map(
    isExact && timed > 0
      ? (await queryAll(on, EXACT, [projectId, range.from, range.to, ids])).map((row) => [
          row.function_id,
          row,
        ])
      : [],
  );
  // A sum of products of integers and of a duration in whole microseconds: it has no fraction.
  const billed = rows.reduce((sum, row) => sum + BigInt(row.billed), 0n);
  return {
    billed_credits: formatAmount(billed / FUNCTION_SCALE),
    functions: rows.map((row) => ({
      name: row.name,
      total: row.total,
      succeeded: row.succeeded,
      failed: row.failed,
      timeout: row.timeout,
      shed: row.shed,
      cold: row.cold,
      warm: row.warm,
      cold_ratio: row.cold + row.warm > 0 ? row.cold / (row.cold + row.warm) : null,
      avg_ms: row.avg_ms,
      ...percentiles(row, exact.get(row.function_id)),
      sum_ms: row.sum_ms,
    })),
  };
}

async function readRows(
  on: Queryable,
  projectId: string,
  range: ReportRange,
  name: string | null,
): Promise<ReportRow[]> {
  if (name === null) return await queryAll(on, REPORT_OF_PROJECT, [projectId, ...bounds(range)]);
  const named = await queryOne(on, NAMED, [projectId, name]);
  return named === undefined ? [] : await queryAll(on, REPORT_OF_FUNCTION, [named.id, ...bounds(range)]);
}

function percentiles(row: ReportRow, exact: Percentiles | undefined): Percentiles {
  if (exact !== undefined) return { p50_ms: exact.p50_ms, p95_ms: exact.p95_ms, p99_ms: exact.p99_ms };
  return { p50_ms: percentile(row, 0.5), p95_ms: percentile(row, 0.95), p99_ms: percentile(row, 0.99) };
}
