-- compatible-with: 41
-- Meters of machines other than sandboxes: builds of Dockerfiles, and instances on which versions of functions are tried.

alter table sandbox_meters
  -- `sandbox`, `build` (`sandbox_id` is the job) or `trial` (of a version of `function_id`): it selects the prices.
  add column kind        text not null default 'sandbox',
  add column function_id uuid;

create or replace function sandbox_meter() returns trigger language plpgsql as $$
declare
  moment timestamptz := clock_timestamp();
  trial  uuid;
begin
  if tg_op <> 'INSERT' and sandbox_is_metered(old.status) then
    if tg_op = 'UPDATE' and new.status = 'lost' then
      select least(moment, r.last_seen_at) into moment from runners r where r.id = old.runner_id;
    end if;
    update sandbox_meters set closed_at = greatest(metered_until, coalesce(moment, clock_timestamp()))
     where sandbox_id = old.id and closed_at is null;
  end if;
  if tg_op = 'DELETE' or not sandbox_is_metered(new.status) then
    return null;
  end if;
  if new.owner_service = 'functions' then
    -- Other instances of functions are paid for by invocation.
    select i.function_id into trial from function_instances i where i.sandbox_id = new.id and i.purpose = 'probe';
    if trial is null then
      return null;
    end if;
  end if;
  insert into sandbox_meters (sandbox_id, org_id, region, runner_id, millicores, mem_mib, gpus, spot, opened_at, metered_until, kind, function_id)
  select new.id, p.org_id, new.region, new.runner_id,
         case when trial is null then round(new.cpu * 1000)::integer else (new.spec ->> 'vcpus')::integer * 1000 end,
         new.mem_mib, new.gpu_host, new.spot, moment, moment, case when trial is null then 'sandbox' else 'trial' end, trial
    from projects p where p.id = new.project_id;
  return null;
end $$;

-- From the lease of a build by a host to its end, or to the lease's when the host is lost. Hosts choose the size of their build machines
-- and do not tell it: each is charged as 2 vCPUs and 2 GiB.
create function build_meter() returns trigger language plpgsql as $$
begin
  if old.status = 'running' then
    update sandbox_meters set closed_at = greatest(metered_until, least(clock_timestamp(), old.lease_until))
     where sandbox_id = old.id and closed_at is null;
  end if;
  if new.status = 'running' then
    insert into sandbox_meters (sandbox_id, org_id, region, runner_id, millicores, mem_mib, gpus, spot, opened_at, metered_until, kind)
    select new.id, p.org_id, coalesce(r.region, ''), new.runner_id, 2000, 2048, 0, false, clock_timestamp(), clock_timestamp(), 'build'
      from projects p left join runners r on r.id = new.runner_id where p.id = new.project_id;
  end if;
  return null;
end $$;
create trigger build_meter after update of status, attempts on jobs
  for each row when (new.kind = 'build' and new.payload -> 'root' ->> 'type' = 'dockerfile'
                     and (old.status is distinct from new.status or old.attempts is distinct from new.attempts))
  execute function build_meter();
