-- compatible-with: 41
-- Starts of instances of functions that serve are metered until their gateways say that the handlers listen.

alter table sandbox_meters
  -- Microseconds that were charged, or are free: a start is free at first. Meters of kind `start` are of a sandbox and a function.
  add column counted_us bigint not null default 0;

-- From when the guest may compute. Calls are charged by invocation, so the meter is closed while the instance lives.
create function start_meter() returns trigger language plpgsql as $$
declare moment timestamptz := clock_timestamp();
begin
  insert into sandbox_meters (sandbox_id, org_id, region, runner_id, millicores, mem_mib, gpus, spot, opened_at, metered_until, kind, function_id)
  select new.id, p.org_id, new.region, new.runner_id, (new.spec ->> 'vcpus')::integer * 1000, new.mem_mib, new.gpu_host, new.spot,
         moment, moment, 'start', i.function_id
    from function_instances i join projects p on p.id = new.project_id
   where i.sandbox_id = new.id and i.purpose = 'serve';
  return null;
end $$;
create trigger start_meter after update of status on sandboxes
  for each row when (new.owner_service = 'functions' and old.status in ('pending', 'assigned', 'building')
                     and new.status in ('booting', 'running'))
  execute function start_meter();
