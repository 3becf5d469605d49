-- compatible-with: 41
-- The teardown of a project is claimed by attempts, as all other work: a server that was taken for dead cannot end it.
alter table projects add column teardown_attempt integer not null default 0;
