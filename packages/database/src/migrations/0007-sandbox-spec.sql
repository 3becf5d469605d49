-- One immutable `spec` a sandbox instead of a column a request field; environments in tables of their own, which no
-- list, transition or sync reads in bulk; an owner, for sandboxes that no tenant lists.
--
-- Expand and contract (docs/decisions/0014-expand-and-contract.md). A server of the previous version may go on writing
-- and reading these tables while servers of this version start. It knows the columns `name`, `vcpus`, `ports`,
-- `egress_policy`, `image_ref`, `root`, `origin` and `env`, and neither `spec` nor `sandbox_env`. The triggers named
-- `bridge_*` below keep both forms equal, whichever version writes. THE NEXT VERSION DROPS the bridge triggers and
-- functions, those columns, and the index `sandboxes_from_snapshot`.

alter table sandboxes
  -- `service`: made by a part of the service for a project. Tenants neither list nor reach it.
  add column owner_kind    text not null default 'project' check (owner_kind in ('project', 'service')),
  add column owner_service text,
  add constraint sandboxes_owner check ((owner_kind = 'service') = (owner_service is not null)),
  -- What only the runner and the record need, resolved; `version` says in which form (database/src/schema.ts).
  add column spec          jsonb,
  -- Size of the environment as JSON text; 0: it has none, and no row in `sandbox_env`.
  add column env_bytes     integer not null default 0;

alter table snapshots
  add column spec          jsonb,
  add column env_bytes     integer not null default 0;

create table sandbox_env (
  sandbox_id uuid primary key references sandboxes (id) on delete cascade,
  env        jsonb not null
);
-- Of full snapshots: the environment that the memory was captured with.
create table snapshot_env (
  snapshot_id uuid primary key references snapshots (id) on delete cascade,
  env         jsonb not null
);

-- What exists already.

create function bridge_spec(name text, vcpus integer, ports jsonb, egress_policy jsonb, image_ref text, root jsonb, origin jsonb)
returns jsonb language sql immutable as
$$ select jsonb_build_object('version', 1, 'name', name, 'vcpus', vcpus, 'ports', ports, 'egress_policy', egress_policy,
                             'image_ref', image_ref, 'root', root, 'origin', origin) $$;

update sandboxes
   set spec = bridge_spec(name, vcpus, ports, egress_policy, image_ref, root, origin),
       env_bytes = case when env = '{}' then 0 else octet_length(env::text) end;
insert into sandbox_env (sandbox_id, env) select id, env from sandboxes where env <> '{}';
alter table sandboxes alter column spec set not null;

update snapshots
   set spec = bridge_spec(null, vcpus, ports, egress_policy, image_ref, root, null),
       env_bytes = case when env = '{}' then 0 else octet_length(env::text) end;
insert into snapshot_env (snapshot_id, env) select id, env from snapshots where env <> '{}';
alter table snapshots alter column spec set not null;

-- Sandboxes that are made from a snapshot and have not run yet.
create index sandboxes_by_origin_snapshot on sandboxes ((spec -> 'origin' ->> 'snapshot_id'))
  where spec -> 'origin' ->> 'snapshot_id' is not null and manifest_name is null;

-- A spec never changes. What users wrote into it may be erased from a deleted sandbox.
create function sandbox_spec_is_immutable() returns trigger language plpgsql as $$
begin
  if new.status <> 'deleted' then
    raise exception 'the spec of sandbox % is immutable', old.id using errcode = 'restrict_violation';
  end if;
  -- Bridge: the next version drops this line with the column.
  new.egress_policy := nullif(new.spec -> 'egress_policy', 'null');
  return new;
end $$;
create trigger sandbox_spec_is_immutable before update of spec on sandboxes
  for each row when (new.spec is distinct from old.spec) execute function sandbox_spec_is_immutable();

-- The bridge. An INSERT of the previous version has no spec; one of this version has no columns that the spec replaces.

create function bridge_sandbox_insert() returns trigger language plpgsql as $$
begin
  if new.spec is null then
    new.spec := bridge_spec(new.name, new.vcpus, new.ports, new.egress_policy, new.image_ref, new.root, new.origin);
    new.env_bytes := case when new.env = '{}' then 0 else octet_length(new.env::text) end;
  else
    new.name := new.spec ->> 'name';
    new.vcpus := (new.spec ->> 'vcpus')::integer;
    new.ports := new.spec -> 'ports';
    new.egress_policy := nullif(new.spec -> 'egress_policy', 'null');
    new.image_ref := new.spec ->> 'image_ref';
    new.root := new.spec -> 'root';
    new.origin := nullif(new.spec -> 'origin', 'null');
  end if;
  return new;
end $$;
create trigger bridge_sandbox_insert before insert on sandboxes
  for each row execute function bridge_sandbox_insert();

create function bridge_snapshot_insert() returns trigger language plpgsql as $$
begin
  if new.spec is null then
    new.spec := bridge_spec(null, new.vcpus, new.ports, new.egress_policy, new.image_ref, new.root, null);
    new.env_bytes := case when new.env = '{}' then 0 else octet_length(new.env::text) end;
  else
    new.vcpus := (new.spec ->> 'vcpus')::integer;
    new.ports := new.spec -> 'ports';
    new.egress_policy := nullif(new.spec -> 'egress_policy', 'null');
    new.image_ref := new.spec ->> 'image_ref';
    new.root := new.spec -> 'root';
  end if;
  return new;
end $$;
create trigger bridge_snapshot_insert before insert on snapshots
  for each row execute function bridge_snapshot_insert();

-- Environments, from the column (previous version) to the table …
create function bridge_sandbox_env() returns trigger language plpgsql as $$
begin
  if new.env = '{}' then
    delete from sandbox_env where sandbox_id = new.id;
  else
    insert into sandbox_env (sandbox_id, env) values (new.id, new.env)
      on conflict (sandbox_id) do update set env = excluded.env;
  end if;
  if tg_op = 'UPDATE' then
    new.env_bytes := case when new.env = '{}' then 0 else octet_length(new.env::text) end;
  end if;
  return new;
end $$;
create trigger bridge_sandbox_env_insert after insert on sandboxes
  for each row when (new.env <> '{}') execute function bridge_sandbox_env();
create trigger bridge_sandbox_env_update before update of env on sandboxes
  for each row when (pg_trigger_depth() = 0 and new.env is distinct from old.env) execute function bridge_sandbox_env();

create function bridge_snapshot_env() returns trigger language plpgsql as $$
begin
  if new.env = '{}' then
    delete from snapshot_env where snapshot_id = new.id;
  else
    insert into snapshot_env (snapshot_id, env) values (new.id, new.env)
      on conflict (snapshot_id) do update set env = excluded.env;
  end if;
  if tg_op = 'UPDATE' then
    new.env_bytes := case when new.env = '{}' then 0 else octet_length(new.env::text) end;
  end if;
  return new;
end $$;
create trigger bridge_snapshot_env_insert after insert on snapshots
  for each row when (new.env <> '{}') execute function bridge_snapshot_env();
create trigger bridge_snapshot_env_update before update of env on snapshots
  for each row when (pg_trigger_depth() = 0 and new.env is distinct from old.env) execute function bridge_snapshot_env();

-- … and from the table (this version) to the column, so that a server of the previous version can assign the sandbox.
create function bridge_env_to_column() returns trigger language plpgsql as $$
begin
  if tg_table_name = 'sandbox_env' then
    if tg_op = 'DELETE' then update sandboxes set env = '{}' where id = old.sandbox_id;
    else update sandboxes set env = new.env where id = new.sandbox_id;
    end if;
  else
    if tg_op = 'DELETE' then update snapshots set env = '{}' where id = old.snapshot_id;
    else update snapshots set env = new.env where id = new.snapshot_id;
    end if;
  end if;
  return null;
end $$;
create trigger bridge_env_to_column after insert or update or delete on sandbox_env
  for each row when (pg_trigger_depth() = 0) execute function bridge_env_to_column();
create trigger bridge_env_to_column after insert or update or delete on snapshot_env
  for each row when (pg_trigger_depth() = 0) execute function bridge_env_to_column();

-- The teardown of the previous version erases the column.
create function bridge_egress_policy() returns trigger language plpgsql as $$
begin
  new.spec := new.spec || '{"egress_policy": null}';
  return new;
end $$;
create trigger bridge_egress_policy before update of egress_policy on sandboxes
  for each row when (new.egress_policy is null and old.egress_policy is not null) execute function bridge_egress_policy();
