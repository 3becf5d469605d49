-- compatible-with: 36
-- Volumes: directory trees that outlive the sandboxes that have them mounted. Hosts have copies, and commit their changes to the store.

create table volumes (
  id             uuid primary key,
  project_id     uuid not null references projects (id),
  -- Of a deleted one: with the suffix `-deleted`.
  name           text not null,
  type           text not null check (type in ('blockmount')),
  size_gb        integer not null,
  -- Number of the newest manifest; 0: nothing was committed yet.
  head           integer not null default 0,
  -- Counts requests to commit at once. A host that has fulfilled the newest has everything committed that it had then.
  commit_request integer not null default 0,
  used_bytes     bigint,
  used_bytes_at  timestamptz,
  last_used_at   timestamptz,
  created_at     timestamptz not null default now(),
  updated_at     timestamptz not null default now(),
  -- From this moment on its name is free.
  deleted_at     timestamptz,
  -- Nothing of a deleted one is left on hosts, and its manifests are removed.
  erased_at      timestamptz
);
create unique index volumes_by_name on volumes (project_id, name) where deleted_at is null;
create index volumes_newest on volumes (project_id, created_at desc, id desc);
create index volumes_deleted on volumes (deleted_at) where deleted_at is not null;
create index volumes_to_erase on volumes (deleted_at) where deleted_at is not null and erased_at is null;

-- Volumes of sandboxes, in the order of the request.
create table volume_attachments (
  -- Deferred, so that attachments can be written before the row of their sandbox.
  sandbox_id uuid not null references sandboxes (id) on delete cascade deferrable initially deferred,
  mount_path text not null,
  volume_id  uuid not null references volumes (id),
  -- Null: the whole volume.
  subpath    text,
  position   integer not null,
  created_at timestamptz not null default now(),
  primary key (sandbox_id, mount_path)
);
create index volume_attachments_by_volume on volume_attachments (volume_id);

-- Commits: each describes the whole tree. Old ones are thinned out, so numbers have gaps.
create table volume_manifests (
  volume_id     uuid not null references volumes (id),
  number        integer not null check (number > 0),
  id            uuid not null unique,
  root          text not null references blobs (digest),
  reason        text not null check (reason in ('background', 'detach', 'request', 'merge', 'restore')),
  -- The host that committed it; null for a restored one.
  runner_id     uuid,
  -- Of a restored one: the manifest whose tree it has.
  restored_from uuid,
  used_bytes    bigint not null,
  files         bigint not null,
  created_at    timestamptz not null default now(),
  primary key (volume_id, number)
);
create index volume_manifests_newest on volume_manifests (volume_id, created_at desc, id desc);
create index volume_manifests_by_root on volume_manifests (root);

-- Packs: blobs with the content of files. The manifests from `first` to `last` name it.
create table volume_blobs (
  volume_id uuid not null references volumes (id),
  digest    text not null references blobs (digest),
  first     integer not null,
  -- Null: the newest manifest names it.
  last      integer,
  primary key (volume_id, digest, first)
);
create unique index volume_blobs_of_head on volume_blobs (volume_id, digest) where last is null;
create index volume_blobs_dropped on volume_blobs (volume_id, last) where last is not null;
create index volume_blobs_by_digest on volume_blobs (digest);

-- What a host has uploaded for a commit: the proof that it has the content.
create table volume_uploads (
  volume_id  uuid not null references volumes (id),
  runner_id  uuid not null references runners (id) on delete cascade,
  digest     text not null references blobs (digest),
  created_at timestamptz not null default now(),
  primary key (volume_id, runner_id, digest)
);
create index volume_uploads_by_digest on volume_uploads (digest);
create index volume_uploads_by_age on volume_uploads (created_at);

-- What both sides of a merge had changed, newest last.
create table volume_conflicts (
  id         bigint generated always as identity primary key,
  volume_id  uuid not null references volumes (id),
  number     integer not null,
  path       text not null,
  kept_as    text not null,
  kind       text not null,
  runner_id  uuid not null,
  created_at timestamptz not null default now()
);
create index volume_conflicts_of_volume on volume_conflicts (volume_id, id);

-- Volumes on hosts: assignments of the kind `volume`, and what the hosts have last reported of them.
create table volume_copies (
  volume_id   uuid not null references volumes (id),
  runner_id   uuid not null references runners (id) on delete cascade,
  desired     text not null default 'present' check (desired in ('present', 'deleted')),
  generation  integer not null default 0,
  -- The host has files of it.
  present     boolean not null default false,
  -- Number of the manifest that they are based on.
  number      integer,
  -- Since when the host has changes that are not committed.
  dirty_since timestamptz,
  -- The newest request to commit that the host has fulfilled.
  commit      integer not null default 0,
  error       text,
  updated_at  timestamptz not null default now(),
  primary key (volume_id, runner_id)
);
create index volume_copies_by_runner on volume_copies (runner_id, volume_id);

create or replace view blob_references as
  select source -> 'context' ->> 'digest' as digest from images where source -> 'context' ->> 'digest' is not null
  union all
  select payload -> 'root' -> 'context' ->> 'digest' from jobs
   where kind = 'build' and status in ('queued', 'running') and payload -> 'root' -> 'context' ->> 'digest' is not null
  union all
  select digest from artifact_parts
  union all
  select digest from artifact_uploads
  union all
  select root from volume_manifests
  union all
  select digest from volume_blobs
  union all
  select digest from volume_uploads;
