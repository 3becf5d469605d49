-- compatible-with: 41
-- Sandboxes of the facade that stop without activity, or end after a time. Servers of the version before delete a sandbox whose idle
-- time is over, rather than to show it as stopped.
alter table sandbox_leases
  -- When it ends in any case; null for leases that are renewed as a whole.
  add column ends_at timestamptz,
  -- Activity renews the lease by this; null for leases that only their client renews.
  add column idle_s integer;

-- In minutes, as the client sent them; null for none.
alter table compat_sandboxes
  add column auto_stop_m integer,
  add column auto_archive_m integer,
  add column auto_delete_m integer;
