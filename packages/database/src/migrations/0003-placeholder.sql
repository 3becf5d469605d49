-- Replaced by the migration of forks and snapshots when the two lines of work meet.
select 1;
