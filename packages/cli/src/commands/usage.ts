/** `rlp usage [VM]`: what a sandbox uses and has used, or the report of the project. */
import type { UsageItem, UsagePeriod } from '@releap/contract';
import { findSandbox, pages } from '@releap/sdk';
import { usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { shortTime, size, table } from '../output/table.ts';
import { parseDuration } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, print, printJson } from '../terminal.ts';

export interface UsageOptions {
  since?: string;
  by?: string;
  live?: boolean;
}

const COUNTERS = ['DISK READ', 'DISK WRITTEN', 'RECEIVED', 'SENT'] as const;

export async function usage(
  context: Context,
  vm: string | undefined,
  options: UsageOptions,
): Promise<number> {
  const from =
    options.since === undefined
      ? undefined
      : new Date(Date.now() - parseDuration('--since', options.since)).toISOString();
  if (vm === undefined) {
    if (options.live === true) throw usageError('--live needs a sandbox, as in rlp usage --live VM');
    return await report(context, from, resolution(options.by, ['h', 'd']));
  }
  return options.live === true
    ? await live(context, vm)
    : await history(context, vm, from, resolution(options.by, ['m', 'h']));
}

/** `--by hour`, in the API's letter. */
function resolution<T extends string>(by: string | undefined, allowed: readonly T[]): T | undefined {
  if (by === undefined) return undefined;
  const names: Record<string, string> = { m: 'minute', h: 'hour', d: 'day' };
  const found = allowed.find((letter) => names[letter] === by);
  if (found === undefined)
    throw usageError(
      `--by must be ${allowed.map((letter) => names[letter]).join(' or ')} here, but was ${JSON.stringify(by)}`,
    );
  return found;
}

async function live(context: Context, vm: string): Promise<number> {
  const service = openService(context);
  const { id } = await findSandbox(service, vm);
  const now = await service.api.getUsage({ params: { id } });
  if (context.options.json) {
    printJson(context, now);
    return EXIT.ok;
  }
  const row = [
    `${Math.round(now.duration_ms / 1000)} s`,
    `${now.cpu_core_s.toFixed(1)} s`,
    size(now.mem_bytes),
    size(now.disk_bytes),
    ...moved(now),
  ];
  print(context, table(['RUNNING', 'CPU', 'MEMORY', 'DISK', ...COUNTERS], [row]));
  return EXIT.ok;
}

async function history(
  context: Context,
  vm: string,
  from: string | undefined,
  by: 'm' | 'h' | undefined,
): Promise<number> {
  const service = openService(context);
  const { id } = await findSandbox(service, vm);
  const answer = await service.api.getUsageHistory({ params: { id }, query: { from, resolution: by } });
  if (context.options.json) {
    printJson(context, answer);
    return EXIT.ok;
  }
  if (!answer.available) return notRecorded(context);
  const rows = answer.periods.map((period) => [
    shortTime(period.start),
    ...averages(period, period.mem_gib_s),
    size(period.disk_peak_bytes),
    ...moved(period),
  ]);
  print(context, table(['START', 'CORES', 'MEMORY', 'DISK', ...COUNTERS], rows));
  return EXIT.ok;
}

async function report(
  context: Context,
  start: string | undefined,
  by: 'h' | 'd' | undefined,
): Promise<number> {
  const service = openService(context);
  let available = true;
  const items: UsageItem[] = [];
  const found = pages(async ({ query }) => {
    const page = await service.api.getUsageReport({
      query: { start, resolution: by, cursor: query.cursor },
    });
    available = page.available;
    return page;
  }, 'items');
  for await (const item of found) items.push(item);
  if (context.options.json) {
    printJson(context, { available, items });
    return EXIT.ok;
  }
  if (!available) return notRecorded(context);
  const rows = items.map((item) => [
    shortTime(item.start),
    item.name ?? item.sandbox_id,
    `${item.cpu_core_s.toFixed(1)} s`,
    `${item.mem_gib_h.toFixed(3)} GiBh`,
    size(item.disk_peak_bytes),
    ...moved(item),
  ]);
  print(context, table(['START', 'SANDBOX', 'CPU', 'MEMORY', 'DISK', ...COUNTERS], rows));
  return EXIT.ok;
}

function notRecorded(context: Context): number {
  print(context, 'this service does not record what sandboxes use (RELEAP_USAGE)');
  return EXIT.ok;
}

/** Average cores and memory over the observed time. */
function averages({ cpu_core_s: cpu, duration_ms: ms }: UsagePeriod, gibSeconds: number): string[] {
  const seconds = ms / 1000;
  if (seconds === 0) return ['-', '-'];
  return [(cpu / seconds).toFixed(2), size(Math.round((gibSeconds / seconds) * 2 ** 30))];
}

function moved(
  used: Pick<UsagePeriod, 'disk_read_bytes' | 'disk_write_bytes' | 'net_rx_bytes' | 'net_tx_bytes'>,
): string[] {
  return [used.disk_read_bytes, used.disk_write_bytes, used.net_rx_bytes, used.net_tx_bytes].map(size);
}
