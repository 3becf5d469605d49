-- compatible-with: 41
-- The audit log also records what API keys do. `not valid`: entries that are there are not read again under the lock.
alter table audit_log add constraint audit_log_actors check (actor_kind in ('user', 'operator', 'system', 'api_key')) not valid;
alter table audit_log drop constraint audit_log_actor_kind_check;
-- Partitions that were tables before have it as a constraint of their own.
do $$
declare
  partition regclass;
begin
  for partition in select inhrelid::regclass from pg_inherits where inhparent = 'audit_log'::regclass loop
    execute format('alter table %s drop constraint if exists audit_log_actor_kind_check', partition);
  end loop;
end $$;
