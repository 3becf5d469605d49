-- compatible-with: 43
-- Ends the bridge of migration 0007 (docs/decisions/0014-expand-and-contract.md): the columns that `spec`, `sandbox_env` and `snapshot_env`
-- replaced, and the triggers that kept both forms equal. No server since then names them. Only the catalogue changes; existing rows keep the
-- space of the old values until they are updated or vacuumed.

-- In the order in which creates, the most frequent writers, take their locks. One transaction: without its trigger an insert would lack
-- `image_ref`, and without its columns the trigger would fail.
lock table sandboxes, sandbox_env, snapshots, snapshot_env in access exclusive mode;

drop trigger bridge_sandbox_insert on sandboxes;
drop trigger bridge_sandbox_env_insert on sandboxes;
drop trigger bridge_sandbox_env_update on sandboxes;
drop trigger bridge_egress_policy on sandboxes;
drop trigger bridge_env_to_column on sandbox_env;
drop trigger bridge_snapshot_insert on snapshots;
drop trigger bridge_snapshot_env_insert on snapshots;
drop trigger bridge_snapshot_env_update on snapshots;
drop trigger bridge_env_to_column on snapshot_env;

drop function bridge_sandbox_insert();
drop function bridge_sandbox_env();
drop function bridge_egress_policy();
drop function bridge_snapshot_insert();
drop function bridge_snapshot_env();
drop function bridge_env_to_column();
drop function bridge_spec(text, integer, jsonb, jsonb, text, jsonb, jsonb);

-- A spec never changes. What users wrote into it may be erased from a deleted sandbox.
create or replace function sandbox_spec_is_immutable() returns trigger language plpgsql as $$
begin
  if new.status <> 'deleted' then
    raise exception 'the spec of sandbox % is immutable', old.id using errcode = 'restrict_violation';
  end if;
  return new;
end $$;

-- `sandboxes_by_origin_snapshot` has replaced it; it would go with its column, too.
drop index sandboxes_from_snapshot;

alter table sandboxes
  drop column name,
  drop column vcpus,
  drop column ports,
  drop column egress_policy,
  drop column image_ref,
  drop column root,
  drop column origin,
  drop column env;

alter table snapshots
  drop column vcpus,
  drop column ports,
  drop column egress_policy,
  drop column image_ref,
  drop column root,
  drop column env;
