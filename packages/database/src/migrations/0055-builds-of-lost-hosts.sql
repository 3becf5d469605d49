-- compatible-with: 43
-- A build whose host is lost is charged up to the last heartbeat of the host, as a sandbox is. Its lease may lie hours ahead, if the
-- database's clock was set back meanwhile; the time of the last heartbeat is corrected then (clock-steps.ts).

create or replace function build_meter() returns trigger language plpgsql as $$
declare
  ended timestamptz := least(clock_timestamp(), old.lease_until);
begin
  if old.status = 'running' then
    select least(ended, r.last_seen_at) into ended
      from (select old.runner_id as id) build
      left join runners r on r.id = build.id and (r.status = 'lost' or old.lease_until <= clock_timestamp());
    update sandbox_meters set closed_at = greatest(metered_until, ended)
     where sandbox_id = old.id and closed_at is null;
  end if;
  if new.status = 'running' then
    insert into sandbox_meters (sandbox_id, org_id, region, runner_id, millicores, mem_mib, gpus, spot, opened_at, metered_until, kind)
    select new.id, p.org_id, coalesce(r.region, ''), new.runner_id, 2000, 2048, 0, false, clock_timestamp(), clock_timestamp(), 'build'
      from projects p left join runners r on r.id = new.runner_id where p.id = new.project_id;
  end if;
  return null;
end $$;
