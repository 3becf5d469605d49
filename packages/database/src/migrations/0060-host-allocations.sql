-- compatible-with: 43
-- What is allocated on each host, as a row that the statement which moves a sandbox or a snapshot writes (docs/scheduling.md).
-- Triggers do it, so that servers of the release before, which know nothing of it, keep it too.

-- Sums over what a host holds. How much of it counts depends on the overcommitment that servers are configured with, so the sums are
-- separate for the sandboxes that it tells apart: dedicated ones, burstable ones, and burstable ones that are spot.
create table host_allocations (
  runner_id           uuid primary key references runners (id) on delete cascade,
  sandboxes           numeric not null default 0,
  -- Cores and memory of those that may run, disk of all.
  dedicated_cpu       numeric not null default 0,
  dedicated_mem_mib   numeric not null default 0,
  dedicated_disk_mib  numeric not null default 0,
  burstable_cpu       numeric not null default 0,
  burstable_mem_mib   numeric not null default 0,
  burstable_disk_mib  numeric not null default 0,
  spot_cpu            numeric not null default 0,
  spot_mem_mib        numeric not null default 0,
  spot_disk_mib       numeric not null default 0,
  gpus                numeric not null default 0,
  -- Part of the above: of dedicated and burstable ones that are leaving or may be evicted. All spot ones are.
  releasable_dedicated_cpu     numeric not null default 0,
  releasable_dedicated_mem_mib numeric not null default 0,
  releasable_burstable_cpu     numeric not null default 0,
  releasable_burstable_mem_mib numeric not null default 0,
  snapshot_bytes      numeric not null default 0
)
with (fillfactor = 50);

-- From the beginning, so that there is always a row to lock.
create function insert_host_allocation() returns trigger language plpgsql as $$
begin
  insert into host_allocations (runner_id) values (new.id) on conflict do nothing;
  return null;
end $$;
create trigger host_allocation_insert after insert on runners
  for each row execute function insert_host_allocation();

-- What a sandbox adds to the row of its host while that holds it. A lost one may still run there. Of type numeric, in which a sum is
-- exact, however often something is added and taken away.
create function sandbox_allocation(status text, mode text, spot boolean, cpu double precision, mem_mib integer, scratch_mib integer,
  docker_data_mib integer, has_memory boolean, gpu_host integer)
returns table (tier text, cpu_used numeric, mem_used numeric, disk_used numeric, gpus_used numeric, releasable boolean)
language sql immutable as $$
  select case when mode = 'dedicated' then 'dedicated' when spot then 'spot' else 'burstable' end,
         case when o.occupies then cpu::numeric else 0 end,
         case when o.occupies then mem_mib::numeric else 0 end,
         scratch_mib::numeric + coalesce(docker_data_mib, 0) + case when has_memory then mem_mib else 0 end,
         case when o.occupies then gpu_host::numeric else 0 end,
         spot or status in ('stopping', 'pausing', 'deleting')
    from (select status in ('assigned', 'building', 'booting', 'running', 'stopping', 'pausing', 'deleting', 'lost') as occupies) o
$$;

-- The row as it should be, from what the host holds.
create function counted_host_allocation(host uuid) returns host_allocations language sql stable as $$
  select row(host, count(s.id),
             coalesce(sum(a.cpu_used) filter (where a.tier = 'dedicated'), 0),
             coalesce(sum(a.mem_used) filter (where a.tier = 'dedicated'), 0),
             coalesce(sum(a.disk_used) filter (where a.tier = 'dedicated'), 0),
             coalesce(sum(a.cpu_used) filter (where a.tier = 'burstable'), 0),
             coalesce(sum(a.mem_used) filter (where a.tier = 'burstable'), 0),
             coalesce(sum(a.disk_used) filter (where a.tier = 'burstable'), 0),
             coalesce(sum(a.cpu_used) filter (where a.tier = 'spot'), 0),
             coalesce(sum(a.mem_used) filter (where a.tier = 'spot'), 0),
             coalesce(sum(a.disk_used) filter (where a.tier = 'spot'), 0),
             coalesce(sum(a.gpus_used), 0),
             coalesce(sum(a.cpu_used) filter (where a.tier = 'dedicated' and a.releasable), 0),
             coalesce(sum(a.mem_used) filter (where a.tier = 'dedicated' and a.releasable), 0),
             coalesce(sum(a.cpu_used) filter (where a.tier = 'burstable' and a.releasable), 0),
             coalesce(sum(a.mem_used) filter (where a.tier = 'burstable' and a.releasable), 0),
             coalesce((select sum(coalesce(k.disk_bytes, 0)::numeric + coalesce(k.mem_bytes, 0)) from snapshots k
                        where k.held and k.runner_id = host), 0))::host_allocations
    from sandboxes s
   cross join lateral sandbox_allocation(s.status, s.mode, s.spot, s.cpu, s.mem_mib, s.scratch_mib, s.docker_data_mib, s.has_memory, s.gpu_host) a
   where s.held and s.runner_id = host
$$;

-- Counts a host's row again. The row is locked first: a transaction that has moved a sandbox and not yet written the row is not
-- counted, and adds to the row later; one that has written it ends before. @returns the row as it was, if it was wrong
create function recount_host_allocation(host uuid) returns host_allocations language plpgsql volatile as $$
declare
  had     host_allocations;
  counted host_allocations;
begin
  insert into host_allocations (runner_id) values (host) on conflict do nothing;
  select * into had from host_allocations h where h.runner_id = host for no key update;
  -- A statement of its own, with a snapshot that is taken under the lock.
  select * into counted from counted_host_allocation(host);
  if had is not distinct from counted then return null; end if;
  update host_allocations h set
    (sandboxes, dedicated_cpu, dedicated_mem_mib, dedicated_disk_mib, burstable_cpu, burstable_mem_mib,
     burstable_disk_mib, spot_cpu, spot_mem_mib, spot_disk_mib, gpus, releasable_dedicated_cpu,
     releasable_dedicated_mem_mib, releasable_burstable_cpu, releasable_burstable_mem_mib, snapshot_bytes)
    = (counted.sandboxes, counted.dedicated_cpu, counted.dedicated_mem_mib, counted.dedicated_disk_mib, counted.burstable_cpu,
       counted.burstable_mem_mib, counted.burstable_disk_mib, counted.spot_cpu, counted.spot_mem_mib, counted.spot_disk_mib,
       counted.gpus, counted.releasable_dedicated_cpu, counted.releasable_dedicated_mem_mib, counted.releasable_burstable_cpu, counted.releasable_burstable_mem_mib,
       counted.snapshot_bytes)
   where h.runner_id = host;
  return had;
end $$;

-- Hosts whose row is wrong, which none should ever be: of one snapshot, in which a moved sandbox and its host's row agree.
create function wrong_host_allocations() returns table (host uuid, kept jsonb, counted jsonb) language sql stable as $$
  select r.id, to_jsonb(h), to_jsonb(c)
    from runners r left join host_allocations h on h.runner_id = r.id
   cross join lateral counted_host_allocation(r.id) c
   where h is distinct from c
$$;

-- After an update of sandboxes: what they add now, less what they added before, once for each host. Rows of hosts are locked by id, at
-- the end of the statement, and only where a sum changes: a sandbox that goes from booting to running locks none.
create function move_sandbox_allocations() returns trigger language plpgsql as $$
begin
  insert into host_allocations as h (runner_id, sandboxes, dedicated_cpu, dedicated_mem_mib, dedicated_disk_mib, burstable_cpu, burstable_mem_mib,
    burstable_disk_mib, spot_cpu, spot_mem_mib, spot_disk_mib, gpus, releasable_dedicated_cpu,
    releasable_dedicated_mem_mib, releasable_burstable_cpu, releasable_burstable_mem_mib)
  select * from (
    select c.runner_id,
           sum(c.sign) as sandboxes,
           coalesce(sum(c.sign * a.cpu_used) filter (where a.tier = 'dedicated'), 0) as dedicated_cpu,
           coalesce(sum(c.sign * a.mem_used) filter (where a.tier = 'dedicated'), 0) as dedicated_mem_mib,
           coalesce(sum(c.sign * a.disk_used) filter (where a.tier = 'dedicated'), 0) as dedicated_disk_mib,
           coalesce(sum(c.sign * a.cpu_used) filter (where a.tier = 'burstable'), 0) as burstable_cpu,
           coalesce(sum(c.sign * a.mem_used) filter (where a.tier = 'burstable'), 0) as burstable_mem_mib,
           coalesce(sum(c.sign * a.disk_used) filter (where a.tier = 'burstable'), 0) as burstable_disk_mib,
           coalesce(sum(c.sign * a.cpu_used) filter (where a.tier = 'spot'), 0) as spot_cpu,
           coalesce(sum(c.sign * a.mem_used) filter (where a.tier = 'spot'), 0) as spot_mem_mib,
           coalesce(sum(c.sign * a.disk_used) filter (where a.tier = 'spot'), 0) as spot_disk_mib,
           sum(c.sign * a.gpus_used) as gpus,
           coalesce(sum(c.sign * a.cpu_used) filter (where a.tier = 'dedicated' and a.releasable), 0) as releasable_dedicated_cpu,
           coalesce(sum(c.sign * a.mem_used) filter (where a.tier = 'dedicated' and a.releasable), 0) as releasable_dedicated_mem_mib,
           coalesce(sum(c.sign * a.cpu_used) filter (where a.tier = 'burstable' and a.releasable), 0) as releasable_burstable_cpu,
           coalesce(sum(c.sign * a.mem_used) filter (where a.tier = 'burstable' and a.releasable), 0) as releasable_burstable_mem_mib
      from (
        select 1 as sign, runner_id, status, mode, spot, cpu, mem_mib, scratch_mib, docker_data_mib, has_memory, gpu_host from added where held
        union all
        select -1, runner_id, status, mode, spot, cpu, mem_mib, scratch_mib, docker_data_mib, has_memory, gpu_host from removed where held
      ) c
     cross join lateral sandbox_allocation(c.status, c.mode, c.spot, c.cpu, c.mem_mib, c.scratch_mib, c.docker_data_mib, c.has_memory, c.gpu_host) a
     where c.runner_id is not null
     group by c.runner_id
  ) d
   where (d.sandboxes, d.dedicated_cpu, d.dedicated_mem_mib, d.dedicated_disk_mib, d.burstable_cpu, d.burstable_mem_mib,
          d.burstable_disk_mib, d.spot_cpu, d.spot_mem_mib, d.spot_disk_mib, d.gpus, d.releasable_dedicated_cpu,
          d.releasable_dedicated_mem_mib, d.releasable_burstable_cpu, d.releasable_burstable_mem_mib)
         <> (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
   order by d.runner_id
  on conflict (runner_id) do update set
    sandboxes = h.sandboxes + excluded.sandboxes,
    dedicated_cpu = h.dedicated_cpu + excluded.dedicated_cpu,
    dedicated_mem_mib = h.dedicated_mem_mib + excluded.dedicated_mem_mib,
    dedicated_disk_mib = h.dedicated_disk_mib + excluded.dedicated_disk_mib,
    burstable_cpu = h.burstable_cpu + excluded.burstable_cpu,
    burstable_mem_mib = h.burstable_mem_mib + excluded.burstable_mem_mib,
    burstable_disk_mib = h.burstable_disk_mib + excluded.burstable_disk_mib,
    spot_cpu = h.spot_cpu + excluded.spot_cpu,
    spot_mem_mib = h.spot_mem_mib + excluded.spot_mem_mib,
    spot_disk_mib = h.spot_disk_mib + excluded.spot_disk_mib,
    gpus = h.gpus + excluded.gpus,
    releasable_dedicated_cpu = h.releasable_dedicated_cpu + excluded.releasable_dedicated_cpu,
    releasable_dedicated_mem_mib = h.releasable_dedicated_mem_mib + excluded.releasable_dedicated_mem_mib,
    releasable_burstable_cpu = h.releasable_burstable_cpu + excluded.releasable_burstable_cpu,
    releasable_burstable_mem_mib = h.releasable_burstable_mem_mib + excluded.releasable_burstable_mem_mib;
  return null;
end $$;
create trigger sandbox_allocations_move after update on sandboxes referencing old table as removed new table as added
  for each statement execute function move_sandbox_allocations();

create function move_snapshot_allocations() returns trigger language plpgsql as $$
begin
  insert into host_allocations as h (runner_id, snapshot_bytes)
  select c.runner_id, sum(c.bytes) from (
    select runner_id, coalesce(disk_bytes, 0)::numeric + coalesce(mem_bytes, 0) as bytes from added where held
    union all
    select runner_id, - coalesce(disk_bytes, 0)::numeric - coalesce(mem_bytes, 0) from removed where held
  ) c
   where c.runner_id is not null
   group by c.runner_id having sum(c.bytes) <> 0
   order by c.runner_id
  on conflict (runner_id) do update set snapshot_bytes = h.snapshot_bytes + excluded.snapshot_bytes;
  return null;
end $$;
create trigger snapshot_allocations_move after update on snapshots referencing old table as removed new table as added
  for each statement execute function move_snapshot_allocations();

-- What is inserted as held (a fork), or deleted while it is held, is rare: the host is counted again.
create function recount_host_allocations() returns trigger language plpgsql as $$
declare host uuid;
begin
  if tg_op = 'INSERT' then
    for host in select distinct runner_id from added where held and runner_id is not null order by 1 loop
      perform recount_host_allocation(host);
    end loop;
  elsif tg_op = 'DELETE' then
    for host in select distinct runner_id from removed where held and runner_id is not null order by 1 loop
      perform recount_host_allocation(host);
    end loop;
  else
    for host in select runner_id from host_allocations order by 1 loop
      perform recount_host_allocation(host);
    end loop;
  end if;
  return null;
end $$;
create trigger sandbox_allocations_insert after insert on sandboxes referencing new table as added
  for each statement execute function recount_host_allocations();
create trigger sandbox_allocations_delete after delete on sandboxes referencing old table as removed
  for each statement execute function recount_host_allocations();
create trigger sandbox_allocations_truncate after truncate on sandboxes
  for each statement execute function recount_host_allocations();
create trigger snapshot_allocations_insert after insert on snapshots referencing new table as added
  for each statement execute function recount_host_allocations();
create trigger snapshot_allocations_delete after delete on snapshots referencing old table as removed
  for each statement execute function recount_host_allocations();
create trigger snapshot_allocations_truncate after truncate on snapshots
  for each statement execute function recount_host_allocations();
