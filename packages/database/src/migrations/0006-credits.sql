-- Credits. All amounts are nano-credits: integers, so that nothing is ever rounded twice.

-- What an organization has. The trigger below keeps the balance equal to the sum of the ledger, in the transaction
-- that writes the ledger, whoever writes it. No reference to organizations: accounts outlive what they tell of.
create table credit_accounts (
  org_id          uuid primary key,
  balance         bigint not null default 0,
  -- Null: as the server is configured.
  overdraft_limit bigint check (overdraft_limit >= 0),
  updated_at      timestamptz not null default now()
)
with (fillfactor = 50);

create table credit_ledger (
  id          bigint generated always as identity primary key,
  org_id      uuid not null,
  amount      bigint not null,
  kind        text not null check (kind in ('usage', 'burst', 'grant', 'adjustment', 'deletion')),
  sandbox_id  uuid,
  region      text,
  note        text,
  -- The time that a use was charged for.
  period_from timestamptz,
  period_to   timestamptz,
  -- Of a grant: the request that made it, so that it is made once however often it is asked for.
  request_id  uuid,
  created_at  timestamptz not null default now(),
  check (kind <> 'usage' or (sandbox_id is not null and period_from < period_to))
);
create index credit_ledger_newest on credit_ledger (org_id, id desc);
create index credit_ledger_grants on credit_ledger (org_id, id desc) where kind in ('grant', 'adjustment');
-- The same second of a sandbox is never charged twice. Time comes first: new entries then lie beside each other.
create unique index credit_ledger_usage on credit_ledger (period_from, sandbox_id) where kind = 'usage';
create unique index credit_ledger_request on credit_ledger (request_id) where request_id is not null;

create function credit_ledger_add() returns trigger language plpgsql as $$
begin
  -- In one order, so that two writers of many accounts never wait for each other in a circle.
  insert into credit_accounts as a (org_id, balance)
    select org_id, sum(amount)::bigint from added group by org_id order by org_id
    on conflict (org_id) do update set balance = a.balance + excluded.balance, updated_at = now();
  return null;
end $$;
create trigger credit_ledger_add after insert on credit_ledger
  referencing new table as added for each statement execute function credit_ledger_add();

create function credit_ledger_keep() returns trigger language plpgsql as $$
begin
  raise exception 'the credit ledger is append-only: write an adjustment instead' using errcode = 'restrict_violation';
end $$;
create trigger credit_ledger_keep before update or delete on credit_ledger
  for each statement execute function credit_ledger_keep();

-- The statuses in which guaranteed cores and memory are charged; billing/metered-statuses.ts has the same list.
create function sandbox_is_metered(status text) returns boolean language sql immutable parallel safe
  return status in ('assigned', 'building', 'booting', 'running', 'stopping', 'pausing');

-- One row for each time that a sandbox is charged for without a break, until all of it is in the ledger.
create table sandbox_meters (
  id            bigint generated always as identity primary key,
  sandbox_id    uuid not null,
  org_id        uuid not null,
  region        text not null,
  runner_id     uuid,
  millicores    integer not null,
  mem_mib       integer not null,
  gpus          integer not null,
  spot          boolean not null,
  opened_at     timestamptz not null,
  -- All before is in the ledger.
  metered_until timestamptz not null,
  -- Nothing after is ever charged. Null while it goes on.
  closed_at     timestamptz,
  -- What was left when the last charge was cut down to whole nano-credits, in parts of one (metering.ts says which).
  carry         bigint not null default 0
)
with (fillfactor = 70);
create unique index sandbox_meters_open on sandbox_meters (sandbox_id) where closed_at is null;
create index sandbox_meters_due on sandbox_meters (metered_until) where closed_at is null;
create index sandbox_meters_ended on sandbox_meters (id) where closed_at is not null;

-- Opens and closes the meter in the statement that changes the status, whichever statement that is. The clock is read
-- while the sandbox's row is locked: a transaction's own time may lie before that of another one that was first.
create function sandbox_meter() returns trigger language plpgsql as $$
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
  if tg_op <> 'DELETE' and sandbox_is_metered(new.status) then
    insert into sandbox_meters (sandbox_id, org_id, region, runner_id, millicores, mem_mib, gpus, spot, opened_at, metered_until)
    select new.id, p.org_id, new.region, new.runner_id, round(new.cpu * 1000)::integer, new.mem_mib, new.gpu_host, new.spot, moment, moment
      from projects p where p.id = new.project_id;
  end if;
  return null;
end $$;
create trigger sandbox_meter_insert after insert on sandboxes
  for each row when (sandbox_is_metered(new.status)) execute function sandbox_meter();
create trigger sandbox_meter_update after update of status on sandboxes
  for each row when (sandbox_is_metered(old.status) is distinct from sandbox_is_metered(new.status))
  execute function sandbox_meter();
create trigger sandbox_meter_delete after delete on sandboxes
  for each row when (sandbox_is_metered(old.status)) execute function sandbox_meter();

create function sandbox_meters_end() returns trigger language plpgsql as $$
begin
  update sandbox_meters set closed_at = greatest(metered_until, clock_timestamp()) where closed_at is null;
  return null;
end $$;
create trigger sandbox_meters_end after truncate on sandboxes for each statement execute function sandbox_meters_end();

-- What runs while this is installed is charged from now on.
insert into sandbox_meters (sandbox_id, org_id, region, runner_id, millicores, mem_mib, gpus, spot, opened_at, metered_until)
  select s.id, p.org_id, s.region, s.runner_id, round(s.cpu * 1000)::integer, s.mem_mib, s.gpu_host, s.spot, now(), now()
    from sandboxes s join projects p on p.id = s.project_id where sandbox_is_metered(s.status);

-- Up to which reading the CPU time of a sandbox's micro-VM has been compared with its guarantee.
create table cpu_readings (
  sandbox_id  uuid primary key,
  incarnation text not null,
  cpu_usec    bigint not null,
  age_usec    bigint not null,
  carry       bigint not null default 0,
  updated_at  timestamptz not null default now()
)
with (fillfactor = 70);

-- Creating requests that may be repeated under an Idempotency-Key, and what was answered.
create table idempotency_keys (
  -- SHA-256 of who asks and his key.
  id           bytea primary key check (octet_length(id) = 32),
  -- SHA-256 of what he asks.
  request_hash bytea not null check (octet_length(request_hash) = 32),
  -- Ids and tokens of the first try follow from it and from a secret of the installation, so another try makes the same.
  salt         bytea not null,
  attempt      integer not null default 1,
  -- While somebody works on it; null once it is answered.
  lease_until  timestamptz,
  -- The answer, sealed: it may hold a token.
  sealed       bytea,
  created_at   timestamptz not null default now(),
  expires_at   timestamptz not null
);
create index idempotency_keys_expired on idempotency_keys (expires_at);
