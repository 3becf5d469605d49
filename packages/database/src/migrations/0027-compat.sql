-- compatible-with: 26
-- What the compatibility facade knows of sandboxes beyond their rows. One of the native API has a row here once the
-- facade has changed something of it.
create table compat_sandboxes (
  -- No foreign key: the row is written first, and reserves the name. A periodic task removes rows without a sandbox.
  sandbox_id       uuid primary key,
  project_id       uuid not null,
  -- Null: the client gave none.
  name             text,
  -- The snapshot, as the client named it; null for one that was built from a Dockerfile.
  snapshot         text,
  labels           jsonb not null default '{}',
  last_activity_at timestamptz,
  -- It was stopped, and not deleted: it is shown until it is deleted.
  stopped          boolean not null default false,
  created_at       timestamptz not null default now()
);
create unique index compat_sandboxes_by_name on compat_sandboxes (project_id, name) where name is not null;
create index compat_sandboxes_stopped on compat_sandboxes (project_id) where stopped;

-- Snapshots that were created with the facade: an image, and what it does not have.
create table compat_snapshots (
  image_id   uuid primary key references images (id) on delete cascade,
  project_id uuid not null,
  -- May have characters that the image's name cannot have.
  name       text not null,
  image_name text,
  entrypoint jsonb,
  -- Size of sandboxes that are started from it: cores, GiB, GiB.
  cpu        double precision not null,
  memory     double precision not null,
  disk       double precision not null,
  unique (project_id, name)
);
