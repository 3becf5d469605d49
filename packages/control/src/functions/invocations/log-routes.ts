/** `/fns/:name/invocations`, `/fns/:name/logs`, `/fns/:name/usage/series` and `/fns/usage/report`. */
import type { Readable } from 'node:stream';
import { clampLimit, LIMITS, operations, USAGE_PERIODS_MAX, badRequest } from '@releap/contract';
import type { Database } from '@releap/database';
import { readHandlerOutput } from '../versions/handler-output.ts';
import { requireFunction } from '../versions/functions.ts';
import type { Planes } from '../../platform/http/planes.ts';
import { logHeaders, type HostClient } from '../../fleet/runners/host-client.ts';
import type { Range } from '../../compute/usage/history.ts';
import { readRange, readTime } from '../../compute/usage/read-range.ts';
import { readLog } from './log.ts';
import { readFunctionReport, readSeries, reportRange } from './reports.ts';

/** Longest range of hours, and of the report. */
const HOURS_MAX_DAYS = USAGE_PERIODS_MAX / 24;
const DAYS_MAX_DAYS = 3_660;

const shown = ({ from, to }: Range) => ({ from: from.toISOString(), to: to.toISOString() });

export interface InvocationLogOptions {
  database: Database;
  hosts: HostClient;
  limits: { invocationRetentionDays: number };
}

export function invocationLogRoutes(
  { workload }: Planes,
  { database, hosts, limits }: InvocationLogOptions,
): void {
  const { pool } = database;
  const reported = (range: Range, to: string | undefined) =>
    reportRange(range, to === undefined, limits.invocationRetentionDays);

  workload.operation(operations.listInvocations, async ({ params, query, principal }) => {
    const limit = clampLimit(query.limit, LIMITS.invocationPageMax);
    const offset = query.offset ?? 0;
    const { id } = await requireFunction(pool, principal.projectId, params.name);
    const { status = null, version = null, source = null } = query;
    const [from, to] = (['from', 'to'] as const).map((name) => {
      const text = query[name];
      return text === undefined ? null : readTime(name, text);
    }) as [Date | null, Date | null];
    if (offset > 0 && query.cursor !== undefined)
      throw badRequest('offset and cursor cannot be combined: continue with next_cursor alone');
    const page = { status, version, source, from, to, limit, offset, request: query };
    return { ...(await readLog(pool, id, page)), limit, offset };
  });

  workload.operation(
    operations.getFunctionLog,
    async ({ params, query, principal, reply, abortSignal }): Promise<Readable> => {
      const { id: functionId } = await requireFunction(pool, principal.projectId, params.name);
      const { follow = false, version = null } = query;
      logHeaders(reply);
      return readHandlerOutput({ database, hosts }, { functionId, version, follow, signal: abortSignal() });
    },
  );

  workload.operation(operations.getFunctionSeries, async ({ params, query, principal }) => {
    const resolution = query.resolution ?? 'h';
    const range = readRange(
      ['from', 'to'],
      [query.from, query.to],
      resolution === 'h'
        ? { maxDays: HOURS_MAX_DAYS, advice: ' with resolution h: use resolution d' }
        : { maxDays: DAYS_MAX_DAYS, advice: '', defaultDays: 30 },
    );
    const { id } = await requireFunction(pool, principal.projectId, params.name);
    const points = await readSeries(pool, id, resolution, reported(range, query.to));
    return { resolution, ...shown(range), points };
  });

  workload.operation(operations.getFunctionReport, async ({ query, principal }) => {
    const range = readRange(['from', 'to'], [query.from, query.to], { maxDays: HOURS_MAX_DAYS, advice: '' });
    const report = await readFunctionReport(
      pool,
      principal.projectId,
      reported(range, query.to),
      query.fn ?? null,
    );
    return { ...shown(range), ...report };
  });
}
