-- What a start that is under way begins with: the disk (a boot), or the memory that a pause has kept (a resume).
-- `memory` only from the resume until its outcome is known: what ran once must never be restored from it again.
alter table sandboxes
  add column start_from text not null default 'disk' check (start_from in ('disk', 'memory'));
