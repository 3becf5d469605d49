-- compatible-with: 41
-- Why the host of a paused sandbox cannot resume its memory as the host is now: a resume is refused with this reason.
alter table sandboxes add column memory_blocked text;
