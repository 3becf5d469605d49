-- compatible-with: 36
-- Templates per machine: which one captured it (VMM, processor, kernel, system disk), and on which hosts it could not be restored.
alter table function_templates add column machine text;
alter table function_templates add column failed_on uuid[] not null default '{}';

-- Captures of a version that have failed on a host, as long as its machine is the same.
create table function_template_failures (
  version_id uuid not null references function_versions (id) on delete cascade,
  runner_id  uuid not null,
  machine    text not null,
  attempts   integer not null default 1,
  retry_at   timestamptz not null,
  primary key (version_id, runner_id)
);

create index function_instances_newest on function_instances (created_at);
