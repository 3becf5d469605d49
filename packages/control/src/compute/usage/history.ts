/** The history of one sandbox and the report of a project, from the stored records of use. */
import {
  type CursorPosition,
  formatSandboxId,
  USAGE_ITEMS_MAX,
  type UsageItem,
  type UsagePeriod,
} from '@releap/contract';
import { queryAll, statement, type Database } from '@releap/database';

/** Sums of counters, as text: PostgreSQL sums beyond 64 bits. */
interface Sums {
  start: Date;
  duration_ms: string;
  cpu_usec: string;
  memory_kib_ms: string;
  disk_peak_bytes: string;
  disk_read_bytes: string;
  disk_write_bytes: string;
  net_rx_bytes: string;
  net_tx_bytes: string;
}

const SUMS = `sum(duration_ms)::text as duration_ms, sum(cpu_usec)::text as cpu_usec, sum(memory_kib_ms)::text as memory_kib_ms,
  max(disk_peak_bytes)::text as disk_peak_bytes, sum(disk_read_bytes)::text as disk_read_bytes,
  sum(disk_write_bytes)::text as disk_write_bytes, sum(net_rx_bytes)::text as net_rx_bytes, sum(net_tx_bytes)::text as net_tx_bytes`;

const COUNTERS = `duration_ms, cpu_usec, memory_kib_ms, disk_peak_bytes, disk_read_bytes, disk_write_bytes, net_rx_bytes, net_tx_bytes`;

/** The hours of a sandbox, found by the key. $1 sandbox, $2 from, $3 to */
const HOURS_OF_SANDBOX = `generate_series(date_bin('1 hour', $2::timestamptz, 'epoch'), $3::timestamptz, interval '1 hour') as at(hour)
           join usage_hourly h on h.hour = at.hour and h.sandbox_id = $1`;

/** From the batches of the hosts that it was on, hour by hour. What the version before has stored is in `usage_minutes`. */
const MINUTES = statement<Sums>(
  'usage-history-minutes',
  `with hours as materialized (
     select h.hour, r.runner_id from ${HOURS_OF_SANDBOX} cross join unnest(h.runner_ids) as r(runner_id)
   )
   select start, ${SUMS}
     from (select hours.hour + b.minute * interval '1 minute' as start, ${COUNTERS.replaceAll(/\w+/g, 'b.$&')}
             from hours
            cross join lateral (
              select b.minutes[place] as minute, ${COUNTERS.replaceAll(/\w+/g, 'b.$&[place] as $&')}
                from usage_batches b cross join lateral unnest(array_positions(b.sandbox_ids, $1)) as place
               where b.hour = hours.hour and b.runner_id = hours.runner_id and b.bucket = usage_bucket($1)
              offset 0) b
           union all
           select minute, ${COUNTERS} from usage_minutes where sandbox_id = $1 and minute >= $2 and minute < $3) u
    where start >= $2 and start < $3 group by start order by start`,
);
const HOURS = statement<Sums>(
  'usage-history-hours',
  `select hour as start, ${SUMS}
     from (select h.hour, ${COUNTERS.replaceAll(/\w+/g, 'h.$&')} from ${HOURS_OF_SANDBOX}
           union all
           select hour, ${COUNTERS} from usage_hours where sandbox_id = $1) u
    where hour >= $2 and hour < $3 group by hour order by hour`,
);

/** $2 first and $3 end of the hours, within the interval `at` */
const hoursOfInterval = (table: string): string =>
  `select sandbox_id, region, ${COUNTERS} from ${table}
    where project_id = $1 and hour >= greatest($2::timestamptz, at.start) and hour < least($3::timestamptz, at.start + $4::interval)
      and (at.start < $5::timestamptz or sandbox_id < $6::uuid)`;

/**
 * Interval after interval, newest first, until the page is full: what other pages show is not read. $1 project, $2 start, $3 end,
 * $4 width, $5 and $6 position of the last item sent, or infinity and null, $7 limit
 */
const REPORT = statement<Sums & { sandbox_id: string; region: string; name: string | null }>(
  'usage-report',
  `select u.*, s.spec ->> 'name' as name
     from (select at.start, i.*
             from (select start from generate_series(date_bin($4::interval, $2::timestamptz, 'epoch'), $3::timestamptz, $4::interval) as start
                    where start < $3 and start <= $5::timestamptz order by start desc) at
            cross join lateral (
              select sandbox_id, region, ${SUMS}
                from (${hoursOfInterval('usage_hourly')} union all ${hoursOfInterval('usage_hours')}) h
               group by 1, 2 order by 1 desc limit $7) i
            order by 1 desc, 2 desc limit $7) u
     left join sandboxes s on s.id = u.sandbox_id
    order by u.start desc, u.sandbox_id desc`,
);

const KIB_MS_IN_GIB_S = 2 ** 20 * 1000;

const counters = (row: Sums) => ({
  start: row.start.toISOString(),
  duration_ms: Number(row.duration_ms),
  cpu_core_s: Number(row.cpu_usec) / 1e6,
  disk_read_bytes: Number(row.disk_read_bytes),
  disk_write_bytes: Number(row.disk_write_bytes),
  net_rx_bytes: Number(row.net_rx_bytes),
  net_tx_bytes: Number(row.net_tx_bytes),
  disk_peak_bytes: Number(row.disk_peak_bytes),
});
const gibSeconds = (row: Sums): number => Number(row.memory_kib_ms) / KIB_MS_IN_GIB_S;

export interface Range {
  /** Inclusive. */
  from: Date;
  /** Exclusive. */
  to: Date;
}

/** Buckets that start in the range, oldest first. */
export async function readHistory(
  database: Database,
  sandboxId: string,
  resolution: 'm' | 'h',
  { from, to }: Range,
): Promise<UsagePeriod[]> {
  const rows = await queryAll(database.pool, resolution === 'm' ? MINUTES : HOURS, [sandboxId, from, to]);
  return rows.map((row) => ({ ...counters(row), mem_gib_s: gibSeconds(row) }));
}

/** One page: items of hours that start in the range, newest first. `last` is its end if another page follows. */
export async function readReport(
  database: Database,
  projectId: string,
  resolution: 'h' | 'd',
  { from, to }: Range,
  after: CursorPosition | null,
  limit = USAGE_ITEMS_MAX,
): Promise<{ items: UsageItem[]; last: CursorPosition | null }> {
  const rows = await queryAll(database.pool, REPORT, [
    projectId,
    from,
    to,
    resolution === 'h' ? '1 hour' : '1 day',
    after?.created_at ?? 'infinity',
    after?.id ?? null,
    limit + 1,
  ]);
  const page = rows.slice(0, limit);
  const end = rows.length > limit ? page.at(-1) : undefined;
  return {
    items: page.map((row) => ({
      sandbox_id: formatSandboxId(row.region, row.sandbox_id),
      name: row.name,
      ...counters(row),
      mem_gib_h: gibSeconds(row) / 3600,
    })),
    last: end === undefined ? null : { created_at: end.start.toISOString(), id: end.sandbox_id },
  };
}
