-- Kinds of resources that the runner reconciles, as of its last hello.
alter table runners add column kinds text[] not null default '{}';

-- Images that were built, and disk snapshots. The id of a snapshot's artifact is the snapshot's.
create table artifacts (
  id             uuid primary key,
  project_id     uuid not null,
  kind           text not null check (kind in ('image', 'snapshot')),
  -- Of an image.
  digest         text,
  bytes          bigint,
  -- Null: it is not in the store.
  stored_at      timestamptz,
  -- A request waits for it in the store.
  wanted         boolean not null default false,
  unneeded_since timestamptz,
  created_at     timestamptz not null default now(),
  check ((kind = 'image') = (digest is not null))
);
create unique index artifacts_by_digest on artifacts (project_id, digest) where kind = 'image';
create index artifacts_to_store on artifacts (created_at) where stored_at is null;

-- The files of an artifact in the store.
create table artifact_parts (
  artifact_id uuid not null references artifacts (id) on delete cascade,
  name        text not null,
  digest      text not null references blobs (digest),
  bytes       bigint not null,
  primary key (artifact_id, name)
);
create index artifact_parts_by_digest on artifact_parts (digest);

-- An artifact on a host. Its id names the assignment of the kind `artifact`.
create table artifact_locations (
  id          uuid primary key,
  artifact_id uuid not null references artifacts (id),
  runner_id   uuid not null references runners (id),
  desired     text not null check (desired in ('stored', 'present', 'deleted')),
  -- `pending`: the host is fetching it.
  status      text not null check (status in ('pending', 'present')),
  generation  integer not null default 0,
  -- Assigned to the runner. A snapshot on the host that took it is assigned as a snapshot, and here only while it is uploaded.
  held        boolean not null,
  attempts    integer not null default 0,
  retry_at    timestamptz,
  error       text,
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  unique (artifact_id, runner_id)
);
create index artifact_locations_by_runner on artifact_locations (runner_id, id) where held;

-- What a host has uploaded for an artifact that is not stored yet: the proof that it has the content.
create table artifact_uploads (
  location_id uuid not null references artifact_locations (id) on delete cascade,
  digest      text not null references blobs (digest),
  primary key (location_id, digest)
);
create index artifact_uploads_by_digest on artifact_uploads (digest);

create or replace view blob_references as
  select source -> 'context' ->> 'digest' as digest from images where source -> 'context' ->> 'digest' is not null
  union all
  select payload -> 'root' -> 'context' ->> 'digest' from jobs
   where kind = 'build' and status in ('queued', 'running') and payload -> 'root' -> 'context' ->> 'digest' is not null
  union all
  select digest from artifact_parts
  union all
  select digest from artifact_uploads;

-- The artifact that a sandbox is made from; null when there is none.
create function sandbox_artifact(project uuid, spec jsonb) returns uuid language sql stable as $$
  select case
    when spec -> 'origin' ->> 'type' = 'snapshot' then (spec -> 'origin' ->> 'snapshot_id')::uuid
    when spec -> 'root' ->> 'type' = 'stored' then
      (select a.id from artifacts a where a.kind = 'image' and a.project_id = project and a.digest = spec -> 'root' ->> 'digest')
  end
$$;
