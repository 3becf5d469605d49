-- compatible-with: 41
-- What modules read of tables whose owners they must not know, and how they write into such a table within a statement of their own. Each
-- view has only the columns that are read. Views of one table cost nothing: queries use its indexes. A migration that changes a table
-- replaces its view.

-- For object stores, secrets, volumes, artifacts, charges and hosts.
create view sandbox_states as
  select id, project_id, region, runner_id, status, desired, held, persistent, mode, cpu, owner_service, created_at,
         spec ->> 'name' as name, (spec ->> 'vcpus')::integer as vcpus, spec -> 'root' ->> 'digest' as root_digest,
         spec -> 'root' -> 'context' ->> 'digest' as context_digest, sandbox_artifact(project_id, spec) as artifact_id
    from sandboxes;

-- For artifacts, secrets and hosts.
create view snapshot_states as
  select id, project_id, sandbox_id, runner_id, kind, status, desired, held, owner_service, mem_mib, scratch_mib, updated_at,
         spec -> 'root' ->> 'digest' as root_digest
    from snapshots;

-- For charges and gateways.
create view function_states as
  select id, name, region, revision from functions;

-- For artifacts: images that the current version of a function or a newer one starts from.
create view function_roots as
  select v.project_id, v.root ->> 'digest' as digest
    from function_versions v join functions f on f.id = v.function_id where v.version >= coalesce(f.current_version, 0);

-- For charges, credentials and the operator.
create view host_states as
  select id, last_seen_at, forgotten_at from runners;

-- For the authentication of API keys.
create view live_projects as
  select p.id, p.org_id, coalesce(p.default_region, o.default_region) as default_region
    from projects p join organizations o on o.id = p.org_id where p.deleted_at is null;

-- Sandboxes are used: those of these that have an idle time keep their leases.
create function renew_idle_leases(sandboxes uuid[]) returns setof uuid language sql rows 100 as $$
  update sandbox_leases set expires_at = least(ends_at, now() + idle_s * interval '1 second')
   where sandbox_id = any(sandboxes) and idle_s is not null
  returning sandbox_id
$$;

-- The handlers of these instances have listened for so many milliseconds. The time is the database's: a gateway that claims more than has
-- passed ends a meter where it was charged last.
create function close_start_meters(sandboxes uuid[], listening_ms double precision[]) returns void language sql as $$
  update sandbox_meters m
     set closed_at = greatest(m.metered_until, clock_timestamp() - t.for_ms * interval '1 millisecond')
    from unnest(sandboxes, listening_ms) as t(id, for_ms)
   where m.sandbox_id = t.id and m.kind = 'start' and m.closed_at is null
$$;
