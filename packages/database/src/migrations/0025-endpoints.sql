-- Base URL of the region's preview URLs; null while previews are not configured there.
alter table regions add column preview_url text;

-- Ports of sandboxes that have a preview URL. Rows remain while their sandbox has one: stops and starts keep them.
create table endpoints (
  id         uuid primary key,
  sandbox_id uuid not null references sandboxes (id) on delete cascade,
  project_id uuid not null,
  port       integer not null check (port between 1 and 65535),
  public     boolean not null,
  created_at timestamptz not null default now(),
  unique (sandbox_id, port)
);
create index endpoints_by_project on endpoints (project_id);
