-- What the deployment's store has, and since when it is wanted. A row is written before its blob becomes visible in the
-- store, and removed after it, so that nothing lies there unnoticed.
create table blobs (
  digest     text primary key check (digest ~ '^sha256:[0-9a-f]{64}$'),
  bytes      bigint not null check (bytes >= 0),
  -- The last upload, or the first time that it was found in the store. The grace period counts from here.
  touched_at timestamptz not null default now(),
  -- Null: the upload has not ended.
  stored_at  timestamptz
);
create index blobs_by_age on blobs (touched_at);

-- Every row that names a blob. A migration that adds another place replaces the view.
create view blob_references as
  select source -> 'context' ->> 'digest' as digest from images where source -> 'context' ->> 'digest' is not null
  union all
  select payload -> 'root' -> 'context' ->> 'digest' from jobs
   where kind = 'build' and status in ('queued', 'running') and payload -> 'root' -> 'context' ->> 'digest' is not null;
