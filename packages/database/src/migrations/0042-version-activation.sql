-- compatible-with: 41
-- When a version becomes the current one: `now`, with the deploy or the end of its build, or `when_ready`, when an instance of it
-- has listened. Servers that do not know the column deploy as before. A constant default does not rewrite the table.
alter table function_versions add column activate text not null default 'when_ready' check (activate in ('now', 'when_ready'));
