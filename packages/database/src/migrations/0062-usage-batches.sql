-- compatible-with: 41
-- What sandboxes have used, in fewer and larger rows. What 0028 made is read until it expires, and only written by the version before.

-- The pieces of one message of a runner that lie in one hour, by the last bits of their sandboxes, so that the history of one
-- sandbox reads a sixteenth of what its host has sent. Rows are only inserted. The key makes a repeated message harmless.
create table usage_batches (
  hour             timestamptz not null,
  runner_id        uuid not null,
  bucket           smallint not null,
  seq              bigint not null,
  -- One entry of each array for a piece.
  sandbox_ids      uuid[] not null,
  -- Of the hour, 0 to 59.
  minutes          smallint[] not null,
  duration_ms      integer[] not null,
  cpu_usec         bigint[] not null,
  memory_kib_ms    bigint[] not null,
  disk_peak_bytes  bigint[] not null,
  disk_read_bytes  bigint[] not null,
  disk_write_bytes bigint[] not null,
  net_rx_bytes     bigint[] not null,
  net_tx_bytes     bigint[] not null,
  primary key (hour, runner_id, bucket, seq)
) partition by range (hour);
create table usage_batches_default partition of usage_batches default;

create function usage_bucket(sandbox_id uuid) returns smallint language sql immutable parallel safe as
  $$ select (get_byte(uuid_send(sandbox_id), 15) & 15)::smallint $$;

-- The sums of an hour. As `usage_hours`, with a key that begins with the time: what is written now is in a few pages.
create table usage_hourly (
  hour             timestamptz not null,
  sandbox_id       uuid not null,
  project_id       uuid not null,
  region           text not null,
  -- Those whose batches have a piece of it.
  runner_ids       uuid[] not null,
  duration_ms      bigint not null,
  cpu_usec         numeric not null,
  memory_kib_ms    numeric not null,
  disk_peak_bytes  bigint not null,
  disk_read_bytes  numeric not null,
  disk_write_bytes numeric not null,
  net_rx_bytes     numeric not null,
  net_tx_bytes     numeric not null,
  primary key (hour, sandbox_id)
) partition by range (hour);
create index usage_hourly_of_project on usage_hourly (project_id, hour, sandbox_id);
create table usage_hourly_default partition of usage_hourly default;

-- Hours are updated once a minute, all of a page in one statement: their pages have free space for that.
create or replace function make_usage_partition(parent text, low date, high date) returns boolean language plpgsql as $$
declare
  part text := parent || case when high - low = 1 then to_char(low, '_YYYY_MM_DD') else to_char(low, '_YYYY_MM') end;
begin
  if to_regclass(part) is not null then return false; end if;
  execute format('create table %I (like %I including defaults including constraints including indexes) with (fillfactor = %s)',
    part, parent, case parent when 'usage_hours' then 60 when 'usage_hourly' then 50 else 100 end);
  execute format('alter table %I attach partition %I for values from (%L) to (%L)', parent, part,
    low::timestamp at time zone 'utc', high::timestamp at time zone 'utc');
  return true;
exception
  -- The default partition has rows of this time already.
  when check_violation then return false;
end $$;
select make_usage_partition('usage_batches', day, day + 1)
  from (select (now() at time zone 'utc')::date + ahead as day from generate_series(-8, 3) ahead) d;
select make_usage_partition('usage_hourly', month::date, (month + interval '1 month')::date)
  from (select date_trunc('month', now() at time zone 'utc') + ahead * interval '1 month' as month from generate_series(-1, 2) ahead) m;

-- A server of the version before gets a message again that one of this version has stored. The other direction is in the
-- statement of this version (store-usage.ts).
create function bridge_usage_minutes() returns trigger language plpgsql as $$
begin
  if exists (select 1 from usage_batches b
              where b.hour = date_bin('1 hour', new.minute, 'epoch') and b.runner_id = new.runner_id
                and b.bucket = usage_bucket(new.sandbox_id) and b.seq = new.seq) then
    return null;
  end if;
  return new;
end $$;
create trigger bridge_usage_minutes before insert on usage_minutes for each row execute function bridge_usage_minutes();
