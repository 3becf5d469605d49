-- compatible-with: 41
-- Results of invocations count among the stored bytes of their organization.

-- Of invocations that were queued on a day, which are removed together. Results of before are not counted.
create table invocation_result_bytes (
  project_id uuid not null references projects (id),
  day        date not null,
  bytes      numeric not null,
  primary key (project_id, day)
) with (fillfactor = 50);

create or replace function org_used(org uuid, wanted text) returns numeric language plpgsql volatile as $$
declare used numeric;
begin
  if wanted in ('sandboxes', 'function_instances') then
    select count(*) into used from sandboxes s join projects p on p.id = s.project_id
     where p.org_id = org and s.status <> 'deleted' and s.status <> 'failed'
       and s.owner_kind = case wanted when 'sandboxes' then 'project' else 'service' end;
  elsif wanted in ('cores', 'memory_mib') then
    -- A host that is silent may return with its sandboxes.
    select coalesce(sum(case wanted when 'cores' then s.cpu::numeric else s.mem_mib end), 0) into used
      from sandboxes s join projects p on p.id = s.project_id
     where p.org_id = org and s.status <> 'deleted'
       and (is_active_sandbox(s.status) or (s.status = 'lost' and s.desired = 'running'));
  elsif wanted = 'stored_bytes' then
    select coalesce(sum(bytes), 0) into used from (
      select i.bytes from images i join projects p on p.id = i.project_id where p.org_id = org
      union all
      select coalesce(k.mem_bytes, 0) + coalesce(k.disk_bytes, 0) from snapshots k join projects p on p.id = k.project_id
       where p.org_id = org and k.status <> 'deleted' and k.owner_service is null
      union all
      select v.used_bytes from volumes v join projects p on p.id = v.project_id where p.org_id = org and v.deleted_at is null
      union all
      select r.bytes from invocation_result_bytes r join projects p on p.id = r.project_id where p.org_id = org
    ) as stored;
  elsif wanted = 'pending_invocations' then
    select count(*) into used from invocation_payloads where org_id = org;
  elsif wanted = 'pending_invocation_bytes' then
    select coalesce(sum(octet_length(body)), 0) into used from invocation_payloads where org_id = org;
  end if;
  return used;
end $$;

-- As before, but what is taken between two counts of stored bytes is added to the first one: many results are stored in that time.
create or replace function try_quota(org uuid, wanted text, amount numeric, recount interval default '0') returns jsonb
language plpgsql volatile as $$
declare
  allowed numeric := org_quota(org, wanted);
  found_bound numeric;
  counted timestamptz;
  used numeric;
begin
  if amount <= 0 or allowed is null then return null; end if;
  -- Stored bytes grow without a request.
  if wanted <> 'stored_bytes' then
    update org_usage set bound = bound + amount
     where org_id = org and resource = wanted and bound + amount <= allowed;
    if found then return null; end if;
  end if;
  insert into org_usage (org_id, resource, bound) values (org, wanted, 'Infinity') on conflict do nothing;
  select bound, counted_at into found_bound, counted from org_usage where org_id = org and resource = wanted for update;
  -- Another transaction has counted while this one waited.
  if wanted <> 'stored_bytes' and found_bound + amount <= allowed then
    update org_usage set bound = bound + amount where org_id = org and resource = wanted;
    return null;
  end if;
  if counted + recount > clock_timestamp() then
    used := found_bound;
    if used + amount <= allowed then
      update org_usage set bound = bound + amount where org_id = org and resource = wanted;
    end if;
  else
    used := org_used(org, wanted);
    update org_usage set bound = used + case when used + amount <= allowed then amount else 0 end, counted_at = clock_timestamp()
     where org_id = org and resource = wanted;
  end if;
  if used + amount <= allowed then return null; end if;
  return jsonb_build_object('owner', org, 'resource', wanted, 'limit', allowed, 'used', used, 'wanted', amount);
end $$;
