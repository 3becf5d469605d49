-- compatible-with: 41
-- transaction: none
-- Names of the operator for hosts, and the join tokens with which hosts have joined.

-- Set by the operator; null: `facts ->> 'name'`, which the runner declares.
alter table runners add column if not exists name text;

-- The operator's token that this credential was registered with. Null: another way to register, or a control server of an earlier version.
-- Not a reference: the token's row is purged, and its id remains.
alter table runner_credentials add column if not exists join_token_id uuid;

create or replace view host_states as
  select id, last_seen_at, forgotten_at, coalesce(name, facts ->> 'name') as name from runners;
-- statement
create index concurrently if not exists runner_credentials_by_join_token on runner_credentials (join_token_id)
  where join_token_id is not null;
