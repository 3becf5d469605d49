-- compatible-with: 41
-- Invocations that have ended, by function and hour, for reports: exact counts and sums, and a histogram of the durations.

-- Statements that end invocations only insert rows, which wait for nobody; a task merges the rows of a function and hour into one
-- (invocations/hours.ts). What is read is always their sum. A correction is a row with negative counts.
create table invocation_hours (
  -- In which they were received, UTC.
  hour            timestamptz not null,
  project_id      uuid not null,
  function_id     uuid not null,
  total           bigint not null,
  succeeded       bigint not null,
  failed          bigint not null,
  timeout         bigint not null,
  shed            bigint not null,
  cold            bigint not null,
  warm            bigint not null,
  -- Those that have a duration, and the sum of these in milliseconds.
  timed           bigint not null,
  sum_ms          numeric not null,
  billed          numeric not null,
  -- The histogram: how many are in each of these (duration_bucket); others are empty.
  buckets         smallint[] not null,
  bucket_counts   bigint[] not null,
  merged          boolean not null default false
) partition by range (hour);
create index invocation_hours_of_project on invocation_hours (project_id, hour, function_id);
create index invocation_hours_of_function on invocation_hours (function_id, hour);
create index invocation_hours_to_merge on invocation_hours (hour) where not merged;
create table invocation_hours_default partition of invocation_hours default;
select make_usage_partition('invocation_hours', month::date, (month + interval '1 month')::date)
  from (select date_trunc('month', now() at time zone 'utc') + ahead * interval '1 month' as month from generate_series(-1, 2) ahead) m;

-- Of a duration in milliseconds. Bucket 0 is at most a microsecond, bucket n up to 1.04^n microseconds: its middle is at most
-- 2 % away from all in it. 48 hours are in bucket 660.
create function duration_bucket(ms double precision) returns smallint language sql immutable parallel safe as
  $$ select case when ms <= 0.001 then 0 else least(32767, ceil(ln(ms * 1000) / ln(1.04::double precision))) end::smallint $$;

-- For every statement that ends invocations or changes ended ones, of this version or the one before.
do $$
declare
  body constant text := $body$
begin
  if not exists (select from (CHANGED) c where c.status not in ('pending', 'running')) then return null; end if;
  insert into invocation_hours (hour, project_id, function_id, total, succeeded, failed, timeout, shed, cold, warm, timed, sum_ms, billed,
                                buckets, bucket_counts)
  with ended as materialized (
    select sign, date_bin('1 hour', queued_at, 'epoch') as hour, project_id, function_id, status, cold, duration_ms, billed
      from (CHANGED) c where status not in ('pending', 'running') and queued_at >= invocation_hours_since()
  ), sums as (
    select hour, project_id, function_id, sum(sign) as total,
           sum(case when status = 'succeeded' then sign else 0 end) as succeeded,
           sum(case when status = 'failed' then sign else 0 end) as failed,
           sum(case when status = 'timeout' then sign else 0 end) as timeout,
           sum(case when status = 'shed' then sign else 0 end) as shed,
           sum(case when cold then sign else 0 end) as cold,
           sum(case when not cold then sign else 0 end) as warm,
           sum(case when duration_ms is not null then sign else 0 end) as timed,
           coalesce(sum(sign * duration_ms::numeric), 0) as sum_ms,
           coalesce(sum(sign * billed), 0) as billed
      from ended group by hour, project_id, function_id
  ), histograms as (
    select hour, project_id, function_id, array_agg(bucket order by bucket) as buckets, array_agg(n order by bucket) as bucket_counts
      from (select hour, project_id, function_id, duration_bucket(duration_ms) as bucket, sum(sign) as n
              from ended where duration_ms is not null group by 1, 2, 3, 4 having sum(sign) <> 0) b
     group by hour, project_id, function_id
  )
  select hour, project_id, function_id, total, succeeded, failed, timeout, shed, cold, warm, timed, sum_ms, billed,
         coalesce(buckets, '{}'), coalesce(bucket_counts, '{}')
    from sums left join histograms using (hour, project_id, function_id)
   where (total, succeeded, failed, timeout, shed, cold, warm, timed, sum_ms, billed) <> (0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
      or buckets is not null;
  return null;
end $body$;
begin
  execute format('create function count_inserted_invocations() returns trigger language plpgsql as %L',
    replace(body, 'CHANGED', 'select 1 as sign, n.* from new_rows n'));
  execute format('create function count_updated_invocations() returns trigger language plpgsql as %L',
    replace(body, 'CHANGED', 'select 1 as sign, n.* from new_rows n union all select -1, o.* from old_rows o'));
end $$;
create trigger count_inserted_invocations after insert on invocations
  referencing new table as new_rows for each statement execute function count_inserted_invocations();
create trigger count_updated_invocations after update on invocations
  referencing old table as old_rows new table as new_rows for each statement execute function count_updated_invocations();

-- From when on all invocations are counted: the triggers hold writers back until this migration has ended, and clocks may differ. Those that were received before are read from the log while it has them.
do $$
begin
  execute format('create function invocation_hours_since() returns timestamptz language sql immutable parallel safe as %L',
    format('select %L::timestamptz', case when exists (select from invocations)
      then date_trunc('hour', now() + interval '10 minutes', 'UTC') + interval '1 hour' else '-infinity' end));
end $$;
