-- compatible-with: 6
-- Tables that grow with time, in partitions of a month (UTC): the audit log and the charges of use.
--
-- `audit_log` keeps its name: servers of the previous version write and read it as before. Charges of use go into a new
-- table, `credit_usage`: a unique index of a partitioned table must contain the partition key, and the previous version
-- writes grants into `credit_ledger` with ON CONFLICT on the request alone. `credit_ledger` stays for what people and
-- rules write (grants, adjustments, deletions), which is little, and for the use that was charged before this version
-- (or is by a server of the previous one). `ledger_entries` is both. Ids come from one sequence, so they order both.

-- The audit log: the table of before becomes the partition for everything up to the bound that the migration before has set.
do $$
declare
  bound text;
begin
  select substring(pg_get_constraintdef(oid) from '''([^'']+)''') into strict bound
    from pg_constraint where conrelid = 'audit_log'::regclass and conname = 'audit_log_before';
  alter table audit_log drop constraint audit_log_pkey;
  alter table audit_log rename to audit_log_first;
  alter table audit_log_first add constraint audit_log_first_pkey primary key using index audit_log_id_created;
  alter index audit_log_newest rename to audit_log_first_newest;
  create table audit_log (
    id          uuid not null,
    org_id      uuid not null references organizations (id),
    project_id  uuid references projects (id),
    actor_kind  text not null constraint audit_log_actor_kind_check check (actor_kind in ('user', 'operator', 'system')),
    actor_id    text,
    actor_name  text,
    action      text not null,
    target_kind text not null,
    target_id   text not null,
    details     jsonb not null default '{}',
    ip          text,
    user_agent  text,
    outcome     text not null constraint audit_log_outcome_check check (outcome in ('done', 'refused')),
    created_at  timestamptz not null default clock_timestamp(),
    primary key (id, created_at)
  ) partition by range (created_at);
  create index audit_log_newest on audit_log (org_id, created_at desc, id desc);
  execute format('alter table audit_log attach partition audit_log_first for values from (minvalue) to (%L)', bound);
  alter table audit_log_first drop constraint audit_log_before;
end $$;
create table audit_log_default partition of audit_log default;
create trigger audit_log_append_only before update or delete or truncate on audit_log
  for each statement execute function audit_log_is_append_only();
create trigger audit_log_append_only before update or delete or truncate on audit_log_default
  for each statement execute function audit_log_is_append_only();

-- Charges of use. The partition key is part of the rule that no second of a sandbox is charged twice.
create table credit_usage (
  id          bigint not null default nextval('credit_ledger_id_seq'),
  org_id      uuid not null,
  amount      bigint not null,
  kind        text not null check (kind in ('usage', 'burst')),
  sandbox_id  uuid not null,
  region      text,
  note        text,
  period_from timestamptz not null,
  period_to   timestamptz not null,
  created_at  timestamptz not null default now(),
  check (kind <> 'usage' or period_from < period_to)
) partition by range (period_from);
create index credit_usage_newest on credit_usage (org_id, id desc);
create unique index credit_usage_once on credit_usage (period_from, sandbox_id) where kind = 'usage';
create table credit_usage_default partition of credit_usage default;

create trigger credit_ledger_add after insert on credit_usage
  referencing new table as added for each statement execute function credit_ledger_add();
create trigger credit_ledger_keep before update or delete on credit_usage
  for each statement execute function credit_ledger_keep();
create trigger credit_ledger_add after insert on credit_usage_default
  referencing new table as added for each statement execute function credit_ledger_add();
create trigger credit_ledger_keep before update or delete on credit_usage_default
  for each statement execute function credit_ledger_keep();

create view ledger_entries as
  select id, org_id, amount, kind, sandbox_id, region, note, period_from, period_to, created_at from credit_ledger
  union all
  select id, org_id, amount, kind, sandbox_id, region, note, period_from, period_to, created_at from credit_usage;

-- Makes the partition of one month, unless it is there, or another partition covers it. True when it was made. Only the
-- parent's weaker lock is taken, so reads and writes go on.
create function make_month_partition(parent text, month date) returns boolean language plpgsql as $$
declare
  part text := parent || to_char(month, '_YYYY_MM');
  low timestamptz := month::timestamp at time zone 'utc';
  high timestamptz := (month + interval '1 month') at time zone 'utc';
begin
  if to_regclass(part) is not null then return false; end if;
  execute format('create table %I (like %I including defaults including constraints including indexes)', part, parent);
  if parent = 'audit_log' then
    execute format('create trigger audit_log_append_only before update or delete or truncate on %I
      for each statement execute function audit_log_is_append_only()', part);
  else
    execute format('create trigger credit_ledger_add after insert on %I
      referencing new table as added for each statement execute function credit_ledger_add()', part);
    execute format('create trigger credit_ledger_keep before update or delete on %I
      for each statement execute function credit_ledger_keep()', part);
  end if;
  execute format('alter table %I attach partition %I for values from (%L) to (%L)', parent, part, low, high);
  return true;
exception
  -- It would overlap another partition, which covers this month.
  when invalid_object_definition then return false;
end $$;
select make_month_partition(parent, (date_trunc('month', now() at time zone 'utc') + ahead * interval '1 month')::date)
  from unnest(array['audit_log', 'credit_usage']) parent, generate_series(-1, 2) ahead;

-- A meter that cannot be charged is set aside with the reason, so that it does not hold up the others.
alter table sandbox_meters
  add column parked_until  timestamptz,
  add column parked_reason text;
