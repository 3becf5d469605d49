/** `rlp fn logs|calls|stats`: what is recorded of the calls of functions. */
import type { InvocationLogItem } from '@releap/contract';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { milliseconds, shortTime, showTable, table } from '../output/table.ts';
import { parseCount, parseDuration } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, print, printable, printJson, writeTo } from '../terminal.ts';

/** Longest pause of a log that is not followed, in milliseconds. */
const IDLE_MS = 60_000;

export async function functionLogs(
  context: Context,
  name: string,
  { follow = false, fnVersion }: { follow?: boolean; fnVersion?: string },
): Promise<number> {
  if (follow && context.options.json) throw usageError('--follow and --json do not go together');
  const version = fnVersion === undefined ? undefined : parseCount('--fn-version', fnVersion);
  const service = openService(context);
  const log = await service.patient.getFunctionLog(
    { params: { name }, query: { follow: follow || undefined, version } },
    { idleMs: follow ? 0 : IDLE_MS },
  );
  if (context.options.json) printJson(context, { name, text: await log.text() });
  else for await (const chunk of log) await writeTo(context.terminal.stdout, chunk);
  if (follow) throw new CliError('the service has ended the log: run the command again to continue');
  return EXIT.ok;
}

export async function listCalls(
  context: Context,
  name: string,
  options: { status?: string; source?: string; fnVersion?: string; limit?: string },
): Promise<number> {
  const { status, source, fnVersion, limit = '20' } = options;
  const query = {
    limit: parseCount('--limit', limit),
    // Both options have the choices of the API.
    status: status as InvocationLogItem['status'] | undefined,
    source: source as InvocationLogItem['source'] | undefined,
    version: fnVersion === undefined ? undefined : parseCount('--fn-version', fnVersion),
  };
  const { invocations } = await openService(context).api.listInvocations({ params: { name }, query });
  return showTable(
    context,
    invocations,
    ['QUEUED', 'ID', 'SOURCE', 'VERSION', 'STATUS', 'DURATION', 'START', 'ERROR'],
    (one) => [
      one.queued_at.slice(0, 19).replace('T', ' '),
      one.id,
      one.source,
      one.version === null ? '-' : `v${one.version}`,
      one.status,
      milliseconds(one.duration_ms),
      one.cold === null ? '-' : one.cold ? 'cold' : 'warm',
      one.error ?? '',
    ],
  );
}

export async function functionStats(
  context: Context,
  name: string | undefined,
  { since = '24h', by }: { since?: string; by?: string },
): Promise<number> {
  if (name === undefined && by !== undefined)
    throw usageError('--by goes with one function, as in rlp fn stats NAME --by day');
  if (by !== undefined && by !== 'hour' && by !== 'day')
    throw usageError(`--by must be hour or day, but was ${JSON.stringify(by)}`);
  const now = Date.now();
  const [to, from] = [new Date(now), new Date(now - parseDuration('--since', since))].map((time) =>
    time.toISOString(),
  );
  const { api } = openService(context);
  const series =
    name === undefined
      ? undefined
      : await api.getFunctionSeries({
          params: { name },
          query: { resolution: by === 'day' ? 'd' : 'h', from, to },
        });
  const report = await api.getFunctionReport({ query: { from, to, fn: name } });
  if (context.options.json) {
    printJson(context, series === undefined ? report : { ...report, points: series.points });
    return EXIT.ok;
  }
  print(
    context,
    table(
      ['FUNCTION', 'CALLS', 'OK', 'FAILED', 'TIMEOUT', 'SHED', 'COLD', 'AVERAGE', 'P50', 'P95', 'P99'],
      report.functions.map((one) => [
        one.name,
        ...[one.total, one.succeeded, one.failed, one.timeout, one.shed].map(String),
        one.cold_ratio === null ? '-' : `${(one.cold_ratio * 100).toFixed(1)} %`,
        ...[one.avg_ms, one.p50_ms, one.p95_ms, one.p99_ms].map(milliseconds),
      ]),
    ),
  );
  print(context, `cost: ${printable(report.billed_credits)} credits`);
  if (series !== undefined && series.points.length > 0)
    print(
      context,
      table(
        ['START', 'CALLS', 'OK', 'ERRORS', 'SHED', 'COLD', 'WARM', 'AVERAGE'],
        series.points.map((point) => [
          shortTime(point.bucket),
          ...[point.total, point.succeeded, point.errors, point.shed, point.cold, point.warm].map(String),
          milliseconds(point.avg_ms),
        ]),
      ),
    );
  return EXIT.ok;
}
