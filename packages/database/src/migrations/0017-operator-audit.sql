-- Every call of an operator operation: written before it is done, completed when it has ended.
create table operator_audit (
  id         uuid primary key,
  created_at timestamptz not null default clock_timestamp(),
  -- Name of the operation in the contract's table.
  operation  text not null,
  -- Host or organization that it is about.
  subject    text,
  -- Its parameters. Never a credential.
  request    jsonb not null default '{}',
  ip         text,
  request_id text,
  -- Null while it is being done, or when the server died in the middle.
  outcome    text check (outcome in ('done', 'refused', 'failed')),
  error      text
);
create index operator_audit_newest on operator_audit (created_at desc, id desc);
