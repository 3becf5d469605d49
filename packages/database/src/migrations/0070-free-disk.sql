-- Free space of a runner's disk for new sandboxes, of its last heartbeat. Disks of sandboxes are thin, and others write to the same file
-- system: what is allocated does not tell. Null: a runner of an earlier version.
alter table runners add column free_disk_mib integer check (free_disk_mib >= 0);
