-- compatible-with: 41
-- transaction: none
-- Stores of artifacts. The store of the deployment has the id of zeros, and is configured where the control servers are; others are S3
-- buckets that the operator has given to regions. One that no region uses any more stays as long as something is in it.
create table if not exists stores (
  id         uuid primary key,
  bucket     text,
  prefix     text not null default '',
  -- Null: AWS.
  endpoint   text,
  -- As requests are signed.
  s3_region  text,
  -- The credentials, encrypted.
  key_id     text,
  envelope   bytea,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  check (id = '00000000-0000-0000-0000-000000000000' or num_nulls(bucket, s3_region, key_id, envelope) = 0)
);
create unique index if not exists stores_by_location on stores (bucket, prefix, coalesce(endpoint, ''));
insert into stores (id) values ('00000000-0000-0000-0000-000000000000') on conflict do nothing;

-- Regions with a store of their own.
create table if not exists region_stores (
  region   text primary key references regions (id) on delete cascade,
  store_id uuid not null references stores (id)
);
create index if not exists region_stores_by_store on region_stores (store_id);

-- Where hosts of a region store and fetch artifacts.
create or replace function store_of_region(slug text) returns uuid language sql stable as $$
  select coalesce((select store_id from region_stores where region = slug), '00000000-0000-0000-0000-000000000000')
$$;

-- For regions.
create or replace view region_store_locations as
  select r.region, s.bucket, s.prefix, s.endpoint, s.s3_region from region_stores r join stores s on s.id = r.store_id;

-- What the stores of regions have, as `blobs` is for the store of the deployment.
create table if not exists store_blobs (
  store_id   uuid not null references stores (id),
  digest     text not null check (digest ~ '^sha256:[0-9a-f]{64}$'),
  bytes      bigint not null check (bytes >= 0),
  touched_at timestamptz not null default now(),
  stored_at  timestamptz,
  primary key (store_id, digest)
);
create index if not exists store_blobs_by_age on store_blobs (store_id, touched_at);

-- The home copy: in the store of the region whose host uploaded it. Copies in other stores are locations.
alter table artifacts add column if not exists store_id uuid not null default '00000000-0000-0000-0000-000000000000';
alter table artifacts drop constraint if exists artifacts_store_id_fkey,
  add constraint artifacts_store_id_fkey foreign key (store_id) references stores (id) not valid;

-- A location is on a host or in a store. In a store it is a replica, and while it is pending a piece of leased work.
alter table artifact_locations
  alter column runner_id drop not null,
  add column if not exists store_id uuid,
  -- Of a replica: until when its copy is claimed, or the time of the next attempt.
  add column if not exists lease_until timestamptz,
  -- Of a replica: when a create or a host has asked for it last.
  add column if not exists used_at timestamptz;
alter table artifact_locations
  drop constraint if exists artifact_locations_store_id_fkey,
  drop constraint if exists artifact_locations_place,
  add constraint artifact_locations_store_id_fkey foreign key (store_id) references stores (id) not valid,
  add constraint artifact_locations_place check (num_nonnulls(runner_id, store_id) = 1) not valid;

-- The parts of an artifact are in the store of its home copy, which need not be that of the deployment: no row of `blobs` names them then.
alter table artifact_parts drop constraint if exists artifact_parts_digest_fkey;
alter table artifact_uploads drop constraint if exists artifact_uploads_digest_fkey;

-- Every row that names a blob of an artifact, by store.
create or replace view store_blob_references as
  select a.store_id, p.digest from artifact_parts p join artifacts a on a.id = p.artifact_id
  union all
  select l.store_id, p.digest from artifact_parts p join artifact_locations l on l.artifact_id = p.artifact_id and l.store_id is not null
  union all
  select store_of_region(h.region), u.digest
    from artifact_uploads u join artifact_locations l on l.id = u.location_id join runners h on h.id = l.runner_id;

create or replace view blob_references as
  select source -> 'context' ->> 'digest' as digest from images where source -> 'context' ->> 'digest' is not null
  union all
  select payload -> 'root' -> 'context' ->> 'digest' from jobs
   where kind = 'build' and status in ('queued', 'running') and payload -> 'root' -> 'context' ->> 'digest' is not null
  union all
  select digest from store_blob_references where store_id = '00000000-0000-0000-0000-000000000000'
  union all
  select root from volume_manifests
  union all
  select digest from volume_blobs
  union all
  select digest from volume_uploads;
-- statement
create unique index concurrently if not exists artifact_locations_by_store on artifact_locations (artifact_id, store_id)
  where store_id is not null;
-- statement
create index concurrently if not exists artifact_locations_of_stores on artifact_locations (store_id, status) where store_id is not null;
-- statement
create index concurrently if not exists artifacts_by_store on artifacts (store_id)
  where store_id <> '00000000-0000-0000-0000-000000000000';
-- statement
alter table artifacts validate constraint artifacts_store_id_fkey;
-- statement
alter table artifact_locations validate constraint artifact_locations_store_id_fkey, validate constraint artifact_locations_place;
