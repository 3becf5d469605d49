-- What a sandbox begins with instead of an empty disk: the source of a fork, or a snapshot, as its runner is told.
-- It counts until the sandbox has run.
alter table sandboxes
  add column origin             jsonb,
  add column parent_snapshot_id uuid;
create index sandboxes_by_source on sandboxes (forked_from) where forked_from is not null and status in ('pending', 'assigned');
create index sandboxes_from_snapshot on sandboxes ((origin ->> 'snapshot_id'))
  where origin ->> 'snapshot_id' is not null and manifest_name is null;

-- A host that is being drained takes nothing new, and gives away what it can, over every restart of either side.
alter table runners
  add column draining_since timestamptz,
  add column drain_force    boolean not null default false;

create table snapshots (
  id            uuid primary key,
  project_id    uuid not null references projects (id),
  name          text not null,
  kind          text not null check (kind in ('disk', 'full')),

  -- A deleted one is a row as long as its runner may still hold its artifact; nobody sees it.
  status        text not null check (status in ('pending', 'ready', 'failed', 'deleted')),
  desired       text not null check (desired in ('ready', 'deleted')),
  generation    integer not null default 1,
  deadline_at   timestamptz,
  runner_id     uuid not null references runners (id),
  -- The runner is to know of it. False too while an earlier snapshot of the same sandbox is being taken.
  held          boolean not null,
  job_id        uuid not null,
  error         text,

  sandbox_id    uuid not null,
  parent_id     uuid,
  region        text not null references regions (id),
  no_changes    boolean not null default false,
  artifact_ref  text,
  manifest_name text,
  fc_version    text,
  cpu_marker    text,
  mem_bytes     bigint,
  disk_bytes    bigint,

  -- The sandbox as it was, for those that are made from it.
  image_ref     text not null,
  root          jsonb not null,
  mode          text not null,
  cpu           double precision not null,
  vcpus         integer not null,
  mem_mib       integer not null,
  scratch_mib   integer not null,
  cpu_arch      text not null,
  ports         jsonb not null default '[]',
  env           jsonb not null default '{}',
  egress_policy jsonb,

  created_at    timestamptz not null default now(),
  updated_at    timestamptz not null default now(),
  deleted_at    timestamptz
);
create unique index snapshots_by_name on snapshots (project_id, name) where status <> 'deleted';
create index snapshots_newest on snapshots (project_id, created_at desc, id desc) where status <> 'deleted';
create index snapshots_held on snapshots (runner_id) where held;
create index snapshots_pending on snapshots (sandbox_id, created_at) where status = 'pending';
create index snapshots_overdue on snapshots (deadline_at) where deadline_at is not null;
create index snapshots_children on snapshots (parent_id) where status <> 'deleted';
