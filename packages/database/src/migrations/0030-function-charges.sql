-- compatible-with: 29
-- Charges of functions: added up per function in the statement that records invocations, and written to the ledger once a minute.

-- Cost of the invocation in fractions of a nano-credit (billing/function-charges.ts has the unit), at the prices of when it
-- was recorded. Null until it has ended.
alter table invocations add column billed numeric;

-- What a function has cost and is not in the ledger yet, in the same unit; after a charge the remainder below a nano-credit.
create table function_meters (
  function_id   uuid primary key,
  project_id    uuid not null,
  parts         numeric not null,
  -- Charged invocations in `parts`.
  invocations   bigint not null,
  -- Time of the oldest one that is not in the ledger; null when there is none.
  since         timestamptz,
  parked_until  timestamptz,
  parked_reason text
)
with (fillfactor = 60);
create index function_meters_due on function_meters (since) where since is not null;
create index function_meters_of_project on function_meters (project_id);

-- An entry is of a sandbox or of a function.
alter table credit_usage alter column sandbox_id drop not null;
alter table credit_usage add column function_id uuid;
create unique index credit_usage_function_once on credit_usage (period_from, function_id) where function_id is not null;

-- Instances of functions are paid for by invocation.
create or replace function sandbox_meter() returns trigger language plpgsql as $$
declare
  moment timestamptz := clock_timestamp();
begin
  if tg_op <> 'INSERT' and sandbox_is_metered(old.status) then
    if tg_op = 'UPDATE' and new.status = 'lost' then
      select least(moment, r.last_seen_at) into moment from runners r where r.id = old.runner_id;
    end if;
    update sandbox_meters set closed_at = greatest(metered_until, coalesce(moment, clock_timestamp()))
     where sandbox_id = old.id and closed_at is null;
  end if;
  if tg_op <> 'DELETE' and sandbox_is_metered(new.status) and new.owner_service is distinct from 'functions' then
    insert into sandbox_meters (sandbox_id, org_id, region, runner_id, millicores, mem_mib, gpus, spot, opened_at, metered_until)
    select new.id, p.org_id, new.region, new.runner_id, round(new.cpu * 1000)::integer, new.mem_mib, new.gpu_host, new.spot, moment, moment
      from projects p where p.id = new.project_id;
  end if;
  return null;
end $$;
