-- compatible-with: 30
-- Object stores: references to buckets of S3-compatible services, which sandboxes mount.

create table object_stores (
  id                   uuid primary key,
  project_id           uuid not null references projects (id),
  name                 text not null,
  bucket               text not null,
  -- Names of secrets. Looked up at each use: a secret that was deleted, or written again, is not the store's matter.
  access_key_secret    text not null,
  secret_key_secret    text not null,
  session_token_secret text,
  -- Empty: AWS.
  endpoint             text not null default '',
  region               text not null default '',
  prefix               text not null default '',
  path_style           boolean not null default false,
  read_only            boolean not null default false,
  provider             text not null default '',
  -- 0: the default of the mount.
  dir_cache_secs       integer not null default 0,
  created_at           timestamptz not null default now(),
  updated_at           timestamptz not null default now(),
  -- From this moment on its name is free.
  deleted_at           timestamptz
);
create unique index object_stores_by_name on object_stores (project_id, name) where deleted_at is null;
create index object_stores_newest on object_stores (project_id, created_at desc, id desc);
create index object_stores_deleted on object_stores (deleted_at) where deleted_at is not null;

-- What sandboxes have mounted, or mount when they start.
create table object_store_mounts (
  -- Deferred, so that mounts can be written before the row of their sandbox.
  sandbox_id      uuid not null references sandboxes (id) on delete cascade deferrable initially deferred,
  mount_path      text not null,
  object_store_id uuid not null references object_stores (id),
  read_only       boolean not null,
  created_at      timestamptz not null default now(),
  primary key (sandbox_id, mount_path)
);
create index object_store_mounts_by_store on object_store_mounts (object_store_id);
