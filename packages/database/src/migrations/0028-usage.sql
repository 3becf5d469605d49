-- compatible-with: 27
-- What sandboxes have used: recorded by runners, stored once, by minute and by hour. Both are partitioned and deleted by retention.

-- A row for each piece that a runner sent: usually one a minute, more when a runner restarted. The key makes a repeated
-- message harmless.
create table usage_minutes (
  sandbox_id       uuid not null,
  minute           timestamptz not null,
  runner_id        uuid not null,
  seq              bigint not null,
  duration_ms      integer not null,
  cpu_usec         bigint not null,
  memory_kib_ms    bigint not null,
  disk_peak_bytes  bigint not null,
  disk_read_bytes  bigint not null,
  disk_write_bytes bigint not null,
  net_rx_bytes     bigint not null,
  net_tx_bytes     bigint not null,
  primary key (sandbox_id, minute, runner_id, seq)
) partition by range (minute);
create table usage_minutes_default partition of usage_minutes default;

-- The sum of the pieces of an hour, added to in the statement that stores a piece. It outlives the row of the sandbox.
create table usage_hours (
  sandbox_id       uuid not null,
  hour             timestamptz not null,
  project_id       uuid not null,
  region           text not null,
  duration_ms      bigint not null,
  cpu_usec         numeric not null,
  memory_kib_ms    numeric not null,
  disk_peak_bytes  bigint not null,
  disk_read_bytes  numeric not null,
  disk_write_bytes numeric not null,
  net_rx_bytes     numeric not null,
  net_tx_bytes     numeric not null,
  primary key (sandbox_id, hour)
) partition by range (hour);
create index usage_hours_of_project on usage_hours (project_id, hour desc, sandbox_id desc);
create table usage_hours_default partition of usage_hours default;

-- Makes the partition of one day or month (UTC), unless it is there. An hour's row is updated once a minute: pages have
-- free space for that.
create function make_usage_partition(parent text, low date, high date) returns boolean language plpgsql as $$
declare
  part text := parent || case when high - low = 1 then to_char(low, '_YYYY_MM_DD') else to_char(low, '_YYYY_MM') end;
begin
  if to_regclass(part) is not null then return false; end if;
  execute format('create table %I (like %I including defaults including constraints including indexes) with (fillfactor = %s)',
    part, parent, case when parent = 'usage_hours' then 60 else 100 end);
  execute format('alter table %I attach partition %I for values from (%L) to (%L)', parent, part,
    low::timestamp at time zone 'utc', high::timestamp at time zone 'utc');
  return true;
exception
  -- The default partition has rows of this time already.
  when check_violation then return false;
end $$;
select make_usage_partition('usage_minutes', day, day + 1)
  from (select (now() at time zone 'utc')::date + ahead as day from generate_series(-8, 3) ahead) d;
select make_usage_partition('usage_hours', month::date, (month + interval '1 month')::date)
  from (select date_trunc('month', now() at time zone 'utc') + ahead * interval '1 month' as month from generate_series(-1, 2) ahead) m;
