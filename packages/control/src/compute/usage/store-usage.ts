/**
 * Stores what runners have recorded. A message is identified by its runner and the runner's sequence number: one statement
 * inserts its pieces as batches, unless they are there, and adds only those that it has inserted to their hours. So a message
 * may be repeated, to any server, and a server may die at any time.
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

const given = names.map((name) => `t.${name}`).join(', ');
const columns = names.join(', ');

/**
 * $1 runner, $2 sequence number, $3 ids of sandboxes, $4 minutes since 1970, $5.. counters, the last one: retention of
 * minutes in days. A runner is believed only about the sandboxes that are assigned to it. What is older than the retention
 * of minutes is dropped: its partition, which would recognize a repeated message, may be gone. What a server of the version
 * before has stored is in `usage_minutes`.
 */
const STORE = statement(
  'usage-store',
  `with given as materialized (
  select distinct on (t.sandbox_id, t.minute_number) t.sandbox_id, date_bin('1 hour', m.minute, 'epoch') as hour,
         (t.minute_number % 60)::smallint as minute, usage_bucket(t.sandbox_id) as bucket, s.project_id, s.region, ${given}
    from unnest($3::uuid[], $4::integer[], ${COUNTERS.map(([, type], at) => `$${at + 5}::${type}[]`).join(', ')})
           as t(sandbox_id, minute_number, ${columns})
   cross join lateral (select to_timestamp(t.minute_number::bigint * 60) as minute) m
    join sandboxes s on s.id = t.sandbox_id and s.runner_id = $1 and s.owner_kind = 'project'
   where m.minute between now() - $${COUNTERS.length + 5}::integer * interval '1 day' and now() + ${AHEAD}
     and not exists (select 1 from usage_minutes u
                      where u.sandbox_id = t.sandbox_id and u.minute = m.minute and u.runner_id = $1 and u.seq = $2)
), stored as (
  insert into usage_batches (hour, runner_id, bucket, seq, sandbox_ids, minutes, ${columns})
  select hour, $1::uuid, bucket, $2::bigint, array_agg(sandbox_id), array_agg(minute),
         ${names.map((name) => `array_agg(${name})`).join(', ')}
    from given group by hour, bucket
  on conflict do nothing
  returning hour, bucket
)
insert into usage_hourly as h (hour, sandbox_id, project_id, region, runner_ids, ${columns})
select hour, sandbox_id, project_id, region, array[$1::uuid], ${total.join(', ')}
  from given join stored using (hour, bucket)
 group by hour, sandbox_id, project_id, region order by hour, sandbox_id
on conflict (hour, sandbox_id) do update
  set runner_ids = case when $1 = any(h.runner_ids) then h.runner_ids else h.runner_ids || $1::uuid end, ${added.join(', ')}`,
);

export async function storeUsage(
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
