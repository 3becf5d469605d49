/**
 * How the version before stored the use of sandboxes, as a comparison: a row for each piece, identified by sandbox, minute, runner and
 * number, and an hour with a key that begins with the sandbox.
 */
import type { UsagePiece } from '@releap/contract/runner';
import { queryAll, statement, type Database } from '@releap/database';

/** Names and types of the counters in both tables, in the order of the parameters from $5 on. */
const COUNTERS = [
  ['duration_ms', 'integer'],
  ['cpu_usec', 'bigint'],
  ['memory_kib_ms', 'bigint'],
  ['disk_peak_bytes', 'bigint'],
  ['disk_read_bytes', 'bigint'],
  ['disk_write_bytes', 'bigint'],
  ['net_rx_bytes', 'bigint'],
  ['net_tx_bytes', 'bigint'],
] as const satisfies readonly (readonly [keyof UsagePiece, string])[];

const names = COUNTERS.map(([name]) => name);
/** A peak is the largest of its parts; everything else is their sum. */
const isPeak = (name: string): boolean => name === 'disk_peak_bytes';
const total = names.map((name) => (isPeak(name) ? `max(${name})` : `sum(${name})`));
const added = names.map((name) =>
  isPeak(name) ? `${name} = greatest(h.${name}, excluded.${name})` : `${name} = h.${name} + excluded.${name}`,
);

/** A runner's clock may be ahead of the database's by this much. */
const AHEAD = `interval '1 day'`;

/**
 * $1 runner, $2 sequence number, $3 ids of sandboxes, $4 minutes since 1970, $5.. counters, the last one: retention of
 * minutes in days. A runner is believed only about the sandboxes that are assigned to it. What is older than the retention
 * of minutes is dropped: its partition, which would recognize a repeated piece, may be gone.
 */
const STORE = statement(
  'bench-usage-store-before',
  `with given as (
  select t.sandbox_id, to_timestamp(t.minute_number::bigint * 60) as minute, s.project_id, s.region, ${names.map((name) => `t.${name}`).join(', ')}
    from unnest($3::uuid[], $4::integer[], ${COUNTERS.map(([, type], at) => `$${at + 5}::${type}[]`).join(', ')})
           as t(sandbox_id, minute_number, ${names.join(', ')})
    join sandboxes s on s.id = t.sandbox_id and s.runner_id = $1 and s.owner_kind = 'project'
   where to_timestamp(t.minute_number::bigint * 60) between now() - $${COUNTERS.length + 5}::integer * interval '1 day' and now() + ${AHEAD}
), stored as (
  insert into usage_minutes (sandbox_id, minute, runner_id, seq, ${names.join(', ')})
  select sandbox_id, minute, $1::uuid, $2::bigint, ${names.join(', ')} from given
  on conflict do nothing
  returning sandbox_id, minute, ${names.join(', ')}
)
insert into usage_hours as h (sandbox_id, hour, project_id, region, ${names.join(', ')})
select stored.sandbox_id, date_bin('1 hour', minute, 'epoch') as hour, s.project_id, s.region, ${total.join(', ')}
  from stored join sandboxes s on s.id = stored.sandbox_id
 group by 1, 2, 3, 4 order by 1, 2
on conflict (sandbox_id, hour) do update set ${added.join(', ')}`,
);

export async function storeUsageBefore(
  database: Database,
  runnerId: string,
  { seq, pieces }: { seq: number; pieces: readonly UsagePiece[] },
  minuteDays: number,
): Promise<void> {
  if (pieces.length === 0) return;
  await queryAll(database.pool, STORE, [
    runnerId,
    seq,
    pieces.map((piece) => piece.vm_id),
    pieces.map((piece) => piece.minute),
    ...names.map((name) => pieces.map((piece) => piece[name])),
    minuteDays,
  ]);
}
