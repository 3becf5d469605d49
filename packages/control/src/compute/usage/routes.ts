/** `/vms/:id/usage`, from the host of the sandbox, and the history and report, from the database. */
import type { Database } from '@releap/database';
import type { HostClient } from '../../fleet/runners/host-client.ts';
import type { Usage } from './usage.ts';
import {
  cursorPosition,
  formatSandboxId,
  nextCursor,
  notFound,
  operations,
  quote,
  USAGE_PERIODS_MAX,
  USAGE_REPORT_CURSORS,
  UsageOfRun,
} from '@releap/contract';
import { Compile } from 'typebox/compile';
import type { Planes } from '../../platform/http/planes.ts';
import { hostDocument } from '../../fleet/runners/host-client.ts';
import { hostOf, type HostOfSandbox } from '../sandboxes/host-of.ts';
import { readHistory, readReport } from './history.ts';
import { readRange } from './read-range.ts';

const Answer = Compile(UsageOfRun);
const ANSWER_MAX_BYTES = 16 * 1024;

/** Without a VM on a host. A lost sandbox may have one, on a host that does not answer. */
const OFF_HOST: ReadonlySet<HostOfSandbox['status']> = new Set([
  'pending',
  'stopped',
  'paused',
  'deleted',
  'failed',
]);

const MINUTES_MAX_DAYS = USAGE_PERIODS_MAX / (24 * 60);
const HOURS_MAX_DAYS = USAGE_PERIODS_MAX / 24;

export function usageRoutes(
  { workload }: Planes,
  { database, hosts, usage }: { database: Database; hosts: HostClient; usage: Usage },
): void {
  const isAvailable = usage.settings.mode === 'on';

  workload.operation(operations.getUsage, async ({ params, principal, abortSignal }) => {
    const row = await hostOf(database, params.id, principal.projectId);
    const shown = `sandbox ${quote(params.id)}`;
    const notOnHost = notFound(`${shown} is ${row.status} and does not run on a host`, 'sandbox_off_host');
    if (row.runner_id === null || row.data_url === null || OFF_HOST.has(row.status)) throw notOnHost;
    const answer = await hosts.log({
      runnerId: row.runner_id,
      dataUrl: row.data_url,
      path: `/vms/${row.id}/usage`,
      subject: row.id,
      shown,
      follow: false,
      signal: abortSignal(),
    });
    if (answer === undefined) throw notOnHost;
    const run = await hostDocument(answer, Answer, { maxBytes: ANSWER_MAX_BYTES, shown });
    return { sandbox_id: formatSandboxId(row.region, row.id), ...run };
  });

  workload.operation(operations.getUsageHistory, async ({ params, query, principal }) => {
    const resolution = query.resolution ?? 'm';
    const range = readRange(
      ['from', 'to'],
      [query.from, query.to],
      resolution === 'm'
        ? { maxDays: MINUTES_MAX_DAYS, advice: ' with resolution m: use resolution h' }
        : { maxDays: HOURS_MAX_DAYS, advice: '' },
    );
    const { id, region } = await hostOf(database, params.id, principal.projectId);
    const periods = isAvailable ? await readHistory(database, id, resolution, range) : [];
    return { available: isAvailable, sandbox_id: formatSandboxId(region, id), periods };
  });

  workload.operation(operations.getUsageReport, async ({ query, principal }) => {
    const range = readRange(['start', 'end'], [query.start, query.end], {
      maxDays: HOURS_MAX_DAYS,
      advice: '',
    });
    const after = cursorPosition(USAGE_REPORT_CURSORS, query.cursor);
    if (!isAvailable) return { available: false, items: [] };
    const { items, last } = await readReport(
      database,
      principal.projectId,
      query.resolution ?? 'h',
      range,
      after,
    );
    return { available: true, items, next_cursor: nextCursor(USAGE_REPORT_CURSORS, last) };
  });
}
