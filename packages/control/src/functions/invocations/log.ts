/** The invocation log of a function, and numbers over it. Invocations are counted by the time at which they were received. */
import {
  formatAmount,
  type FunctionReportItem,
  type FunctionSeriesPoint,
  type InvocationLogItem,
  LIST_CURSORS,
} from '@releap/contract';
import { queryAll, statement, type Queryable } from '@releap/database';
import { FUNCTION_SCALE } from '../../tenancy/billing/function-charges.ts';
import type { Range } from '../../compute/usage/history.ts';
import { pagedList, type NextPage, type PageRequest } from '../../platform/paged-list.ts';

interface LogRow extends Omit<InvocationLogItem, 'queued_at' | 'finished_at'> {
  queued_at: Date;
  finished_at: Date | null;
}

const LOG_COLUMNS = 'id, version, status, source, queued_at, finished_at, duration_ms, cold, error';
/** $1 function; each null or: $2 status, $3 version, $4 source, $5 from, $6 to */
const MATCHES = `function_id = $1 and ($2::text is null or status = $2) and ($3::integer is null or version = $3)
      and ($4::text is null or source = $4) and ($5::timestamptz is null or queued_at >= $5)
      and ($6::timestamptz is null or queued_at < $6)`;
/** $7 limit, $8 offset */
const LOG = statement<LogRow>(
  'invocations-log',
  `select ${LOG_COLUMNS} from invocations where ${MATCHES} order by queued_at desc, id desc limit $7 offset $8`,
);
const LOG_PAGES = pagedList<LogRow>('invocations-log', LIST_CURSORS.invocations, {
  columns: LOG_COLUMNS,
  from: 'invocations',
  where: MATCHES,
  parameters: 6,
  keys: [
    { sql: 'queued_at', type: 'timestamptz' },
    { sql: 'id', type: 'uuid' },
  ],
  direction: 'desc',
});

const count = (where: string): string => `(count(*) filter (where ${where}))::double precision`;
/** Those without a duration have reached no handler, or have not ended. */
const AVERAGE = `(case when count(duration_ms) > 0 then sum(duration_ms::numeric) / count(duration_ms) end)::double precision`;

/** $1 function, $2 from, $3 to, $4 width */
const SERIES = statement<Omit<FunctionSeriesPoint, 'bucket'> & { bucket: Date }>(
  'function-series',
  `select date_bin($4::interval, queued_at, 'epoch') as bucket, count(*)::double precision as total,
          ${count(`status = 'succeeded'`)} as succeeded, ${count(`status in ('failed', 'timeout')`)} as errors,
          ${count(`status = 'shed'`)} as shed, ${count('cold')} as cold, ${count('not cold')} as warm,
          ${AVERAGE} as avg_ms
     from invocations where function_id = $1 and queued_at >= $2 and queued_at < $3
    group by 1 order by 1`,
);

interface ReportRow extends Omit<FunctionReportItem, 'cold_ratio'> {
  function_id: string;
  billed: string;
}

/** $1 project, $2 from, $3 to, $4 name or null */
const REPORT = statement<ReportRow>(
  'function-report',
  `select f.name, i.*
     from functions f join (
       select function_id, count(*)::double precision as total,
              ${count(`status = 'succeeded'`)} as succeeded, ${count(`status = 'failed'`)} as failed,
              ${count(`status = 'timeout'`)} as timeout, ${count(`status = 'shed'`)} as shed,
              ${count('cold')} as cold, ${count('not cold')} as warm,
              ${AVERAGE} as avg_ms,
              percentile_cont(0.5) within group (order by duration_ms) as p50_ms,
              percentile_cont(0.95) within group (order by duration_ms) as p95_ms,
              percentile_cont(0.99) within group (order by duration_ms) as p99_ms,
              coalesce(sum(duration_ms::numeric), 0)::double precision as sum_ms,
              coalesce(sum(billed), 0)::text as billed
         from invocations
        where project_id = $1 and queued_at >= $2 and queued_at < $3
          and ($4::text is null or function_id = (select id from functions where project_id = $1 and name = $4))
        group by function_id) i on i.function_id = f.id
    where f.project_id = $1 order by f.name`,
);

export interface LogPage {
  status: string | null;
  version: number | null;
  source: string | null;
  from: Date | null;
  to: Date | null;
  /** As it is applied. */
  limit: number;
  /** Skips so many, instead of continuing at a cursor. */
  offset: number;
  request: PageRequest;
}

/** One page, newest first. */
export async function readLog(
  on: Queryable,
  functionId: string,
  { status, version, source, from, to, limit, offset, request }: LogPage,
): Promise<{ invocations: InvocationLogItem[] } & NextPage> {
  const values = [functionId, status, version, source, from, to];
  const { rows, next } =
    offset > 0
      ? { rows: await queryAll(on, LOG, [...values, limit, offset]), next: {} }
      : await LOG_PAGES.page(on, values, request, { most: limit, size: () => limit });
  return {
    ...next,
    invocations: rows.map((row) => ({
      ...row,
      queued_at: row.queued_at.toISOString(),
      finished_at: row.finished_at?.toISOString() ?? null,
    })),
  };
}

/** Buckets with invocations that were received in the range, oldest first. */
export async function readSeries(
  on: Queryable,
  functionId: string,
  resolution: 'h' | 'd',
  { from, to }: Range,
): Promise<FunctionSeriesPoint[]> {
  const rows = await queryAll(on, SERIES, [functionId, from, to, resolution === 'h' ? '1 hour' : '1 day']);
  return rows.map((row) => ({ ...row, bucket: row.bucket.toISOString() }));
}

/** Functions with invocations that were received in the range, by name, and what all of these have cost. */
export async function readFunctionReport(
  on: Queryable,
  projectId: string,
  { from, to }: Range,
  name: string | null,
): Promise<{ billed_credits: string; functions: FunctionReportItem[] }> {
  const rows = await queryAll(on, REPORT, [projectId, from, to, name]);
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
      p50_ms: row.p50_ms,
      p95_ms: row.p95_ms,
      p99_ms: row.p99_ms,
      sum_ms: row.sum_ms,
    })),
  };
}
