-- A fork that was acknowledged takes memory and disk of its source on their host. Until the host says that it has, the
-- source names it here, and a deletion of the source is not passed on to the host. A server of the previous version
-- leaves the column alone: a source that it deletes is not kept for its fork.
alter table sandboxes add column pending_fork uuid;
create index sandboxes_pending_forks on sandboxes (pending_fork) where pending_fork is not null;
