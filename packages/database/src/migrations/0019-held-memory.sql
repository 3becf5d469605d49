-- Memory that a runner holds for sandboxes outside their guarantees, and what of that it would release: of its last heartbeat.
alter table runners
  add column held_mem_mib integer not null default 0 check (held_mem_mib >= 0),
  add column reclaimable_mem_mib integer not null default 0 check (reclaimable_mem_mib >= 0);
