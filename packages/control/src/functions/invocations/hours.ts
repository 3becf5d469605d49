/**
 * The sums of ended invocations by function and hour (`invocation_hours`). Triggers insert them with what they count, in one
 * transaction; here the rows of a function and hour are merged into one, and removed after their retention.
 */
import { queryOne, statement, type Queryable } from '@releap/database';
import { purgeDefault, type PartitionedTable } from '../../platform/retention/partitions.ts';

/** Names of the counts and sums, as columns. */
export const SUMS = [
  'total',
  'succeeded',
  'failed',
  'timeout',
  'shed',
  'cold',
  'warm',
  'timed',
  'sum_ms',
  'billed',
] as const;
const columns = SUMS.join(', ');

/** Rows that one statement merges. */
const BATCH = 5_000;

/**
 * Removes rows and inserts their sum, so that a repetition or a second server changes no sum: each row is removed by one of them.
 * $1 rows
 */
const MERGE = statement<{ rows: number }>(
  'invocation-hours-merge',
  `with picked as materialized (
  select function_id, hour from invocation_hours where not merged limit $1
), gone as (
  delete from invocation_hours h using (select distinct function_id, hour from picked) s
   where h.function_id = s.function_id and h.hour = s.hour
  returning h.*
), histograms as (
  select hour, project_id, function_id, array_agg(bucket order by bucket) as buckets, array_agg(n order by bucket) as bucket_counts
    from (select hour, project_id, function_id, bucket, sum(n)::bigint as n
            from gone cross join lateral unnest(buckets, bucket_counts) as b(bucket, n) group by 1, 2, 3, 4 having sum(n) <> 0) b
   group by hour, project_id, function_id
), kept as (
  insert into invocation_hours (hour, project_id, function_id, ${columns}, buckets, bucket_counts, merged)
  select s.*, coalesce(buckets, '{}'), coalesce(bucket_counts, '{}'), true
    from (select hour, project_id, function_id, ${SUMS.map((name) => `sum(${name})`).join(', ')} from gone group by 1, 2, 3) s
    left join histograms using (hour, project_id, function_id)
)
select count(*)::integer as rows from picked`,
);

export async function mergeHours(on: Queryable): Promise<void> {
  for (;;) {
    const merged = await queryOne(on, MERGE, [BATCH]);
    if ((merged?.rows ?? 0) < BATCH) return;
  }
}

const PURGE = purgeDefault('invocation_hours', 'hour');

export const hoursPartitions = (days: number): PartitionedTable => ({
  table: 'invocation_hours',
  period: 'month',
  behind: 1,
  ahead: 2,
  days,
  purge: PURGE,
});
