-- Periodic tasks that one control server at a time runs. Leases expire; a server renews its own.
create table task_leases (
  name text primary key,
  holder uuid not null,
  expires_at timestamptz not null
);
