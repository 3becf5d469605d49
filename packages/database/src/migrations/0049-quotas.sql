-- compatible-with: 41
-- Quotas of organizations: what they may use at a time. They are checked by the statements that use more (docs/quotas.md).

-- What each organization may have, as the servers were configured.
create table quota_defaults (
  resource text primary key,
  quota    bigint not null check (quota >= 0)
);

-- What an operator has set for one organization.
create table org_quotas (
  org_id     uuid not null references organizations (id),
  resource   text not null references quota_defaults (resource),
  quota      bigint not null check (quota >= 0),
  updated_at timestamptz not null default now(),
  primary key (org_id, resource)
);

-- An upper bound of what each organization uses. Whatever uses more adds to it in its own transaction, and waits there for others of
-- the same organization; what ends changes nothing. Use is counted, and the bound made exact, only when the bound is reached.
create table org_usage (
  org_id     uuid not null references organizations (id),
  resource   text not null,
  bound      numeric not null,
  counted_at timestamptz not null default '-infinity',
  primary key (org_id, resource)
) with (fillfactor = 50);

-- The organization of a payload, for its backlog. Servers of the release before write none.
alter table invocation_payloads add column org_id uuid;

-- Statuses that have cores and memory, on a host or as soon as there is one.
create function is_active_sandbox(status text) returns boolean language sql immutable as $$
  select status in ('pending', 'assigned', 'building', 'booting', 'running', 'stopping', 'pausing', 'deleting')
$$;

-- Volatile, so that each call sees what has been committed before it, also in one statement.
create function org_used(org uuid, wanted text) returns numeric language plpgsql volatile as $$
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
    ) as stored;
  elsif wanted = 'pending_invocations' then
    select count(*) into used from invocation_payloads where org_id = org;
  elsif wanted = 'pending_invocation_bytes' then
    select coalesce(sum(octet_length(body)), 0) into used from invocation_payloads where org_id = org;
  end if;
  return used;
end $$;

create function org_quota(org uuid, wanted text) returns numeric language sql stable as $$
  select coalesce((select quota from org_quotas where org_id = org and resource = wanted),
                  (select quota from quota_defaults where resource = wanted))
$$;

-- Takes this much of a quota, until the end of the transaction for itself. Null, or the refusal. What is counted at most so often
-- may be refused although some of it has ended since.
create function try_quota(org uuid, wanted text, amount numeric, recount interval default '0') returns jsonb
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
  else
    used := org_used(org, wanted);
    update org_usage set bound = used + case when used + amount <= allowed then amount else 0 end, counted_at = clock_timestamp()
     where org_id = org and resource = wanted;
  end if;
  if used + amount <= allowed then return null; end if;
  return jsonb_build_object('owner', org, 'resource', wanted, 'limit', allowed, 'used', used, 'wanted', amount);
end $$;

create function take_quota(org uuid, wanted text, amount numeric) returns void language plpgsql volatile as $$
declare refusal jsonb := try_quota(org, wanted, amount);
begin
  if refusal is not null then
    raise exception 'quota exceeded' using errcode = 'RQ001', detail = refusal::text;
  end if;
end $$;

create function take_sandbox_quota() returns trigger language plpgsql as $$
declare org uuid := (select org_id from projects where id = new.project_id);
begin
  if tg_op = 'INSERT' then
    perform take_quota(org, case new.owner_kind when 'project' then 'sandboxes' else 'function_instances' end, 1);
  end if;
  perform take_quota(org, 'cores', new.cpu::numeric);
  perform take_quota(org, 'memory_mib', new.mem_mib);
  return new;
end $$;
create trigger sandbox_quota before insert on sandboxes
  for each row when (new.status <> 'deleted') execute function take_sandbox_quota();
-- A start or resume. What a host reports is never refused: it leaves the desired state as it is.
create trigger sandbox_quota_of_start before update of status on sandboxes
  for each row when (old.status in ('stopped', 'paused') and old.desired <> 'running' and new.desired = 'running')
  execute function take_sandbox_quota();

-- How much it will be is known when it is stored: a new one is refused while nothing is left.
create function take_storage_quota() returns trigger language plpgsql as $$
begin
  perform take_quota((select org_id from projects where id = new.project_id), 'stored_bytes', 1);
  return new;
end $$;
create trigger image_quota before insert on images
  for each row when (new.project_id is not null) execute function take_storage_quota();
create trigger snapshot_quota before insert on snapshots
  for each row when (new.owner_service is null) execute function take_storage_quota();
create trigger volume_quota before insert on volumes
  for each row execute function take_storage_quota();
