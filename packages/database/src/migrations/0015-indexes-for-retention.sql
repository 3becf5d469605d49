-- compatible-with: 6
-- transaction: none
-- Indexes that the purge of ended rows and the billing of one organization need, built beside live traffic.

create index concurrently if not exists snapshots_by_sandbox on snapshots (sandbox_id);
-- statement
create index concurrently if not exists sandboxes_purgeable on sandboxes (deleted_at) where status = 'deleted' and not held;
-- statement
create index concurrently if not exists snapshots_purgeable on snapshots (updated_at) where status in ('deleted', 'failed') and not held;
-- statement
create index concurrently if not exists jobs_finished on jobs (finished_at) where finished_at is not null;
-- statement
create index concurrently if not exists sandbox_meters_by_org on sandbox_meters (org_id);
-- statement
-- For the conversion of the audit log into a partitioned table by the next migration: its primary key, and a bound that
-- lets it be attached without being read.
create unique index concurrently if not exists audit_log_id_created on audit_log (id, created_at);
-- statement
do $$ begin
  if not exists (select 1 from pg_constraint where conrelid = 'audit_log'::regclass and conname = 'audit_log_before') then
    execute format('alter table audit_log add constraint audit_log_before check (created_at < %L) not valid',
      (date_trunc('month', (now() + interval '3 days') at time zone 'utc') + interval '1 month') at time zone 'utc');
  end if;
end $$;
-- statement
alter table audit_log validate constraint audit_log_before;
