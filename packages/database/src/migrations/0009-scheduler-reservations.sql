-- compatible-with: 8
-- The host that drains for the request which has waited longest, one for each region.

create table scheduler_reservations (
  region     text primary key,
  sandbox_id uuid not null,
  runner_id  uuid not null,
  created_at timestamptz not null default now()
);
create index scheduler_reservations_sandbox on scheduler_reservations (sandbox_id);
