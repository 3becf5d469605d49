-- compatible-with: 39
-- Sandboxes that are deleted unless their client renews their lease in time.

create table sandbox_leases (
  sandbox_id uuid primary key references sandboxes (id) on delete cascade,
  expires_at timestamptz not null
);
create index sandbox_leases_expiring on sandbox_leases (expires_at);
