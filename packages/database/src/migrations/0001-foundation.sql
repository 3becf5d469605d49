-- Organizations, projects and their API keys.

create table organizations (
  id             uuid primary key,
  name           text not null,
  default_region text,
  created_at     timestamptz not null default now()
);

create table projects (
  id             uuid primary key,
  org_id         uuid not null references organizations (id),
  name           text not null,
  default_region text,
  created_at     timestamptz not null default now(),
  unique (org_id, name)
);

create table api_keys (
  id           uuid primary key,
  project_id   uuid not null references projects (id),
  name         text not null,
  -- SHA-256 of the whole token. The token itself is never written anywhere.
  token_hash   bytea not null unique check (octet_length(token_hash) = 32),
  key_prefix   text not null,
  created_at   timestamptz not null default now(),
  revoked_at   timestamptz,
  last_used_at timestamptz
);
create index api_keys_by_project on api_keys (project_id);

-- Placement targets.

create table global_regions (
  id   text primary key,
  name text not null
);

create table regions (
  id                text primary key,
  name              text not null,
  enabled           boolean not null default true,
  is_default        boolean not null default false,
  toolbox_proxy_url text,
  global_region_id  text references global_regions (id),
  created_at        timestamptz not null default now()
);
create unique index regions_one_default on regions (is_default) where is_default;

-- The machines. `epoch` grows with every connection of a runner: the newest one wins.
create table runners (
  id           uuid primary key,
  region       text not null references regions (id),
  status       text not null check (status in ('online', 'offline', 'lost')),
  ready        boolean not null default false,
  data_url     text not null,
  facts        jsonb not null,
  server_id    uuid,
  epoch        bigint not null default 1,
  last_seen_at timestamptz not null default now(),
  created_at   timestamptz not null default now()
);
create index runners_by_region on runners (region);

-- The control servers that are alive, so that a lone one need not notify anybody.
create table control_servers (
  id           uuid primary key,
  last_seen_at timestamptz not null default now()
);

-- Named images. Those without a project are built in and seen by every project,
-- unless the project has one of the same name.
create table images (
  id            uuid primary key,
  project_id    uuid references projects (id),
  name          text not null,
  source        jsonb not null,
  status        text not null check (status in ('pending', 'ready', 'failed')),
  manifest_name text,
  layer_count   integer,
  docker        boolean not null default false,
  region        text references regions (id),
  job_id        uuid not null,
  error         text,
  created_at    timestamptz not null default now(),
  updated_at    timestamptz not null default now()
);
create unique index images_by_name on images (project_id, name) where project_id is not null;
create unique index images_builtin_by_name on images (name) where project_id is null;
create index images_newest on images (project_id, created_at desc, id desc);

create table sandboxes (
  id                uuid primary key,
  project_id        uuid not null references projects (id),
  name              text not null,
  region            text not null references regions (id),

  status            text not null check (status in ('pending', 'assigned', 'booting', 'building', 'running',
                      'stopping', 'stopped', 'pausing', 'paused', 'deleting', 'deleted', 'failed', 'lost')),
  -- What the runner is to make of it, and the fence: it grows whenever that changes.
  desired           text not null check (desired in ('running', 'stopped', 'paused', 'deleted')),
  generation        integer not null default 1,
  -- When the present status must have been left; null for a status that may last.
  deadline_at       timestamptz,
  runner_id         uuid references runners (id),
  -- The runner may still hold something of it: a VM, a disk, a network slot.
  held              boolean not null default false,
  job_id            uuid not null,
  error             text,

  mode              text not null check (mode in ('burstable', 'dedicated')),
  cpu               double precision not null,
  vcpus             integer not null,
  mem_mib           integer not null,
  scratch_mib       integer not null,
  gpu_host          integer not null default 0,
  docker_data_mib   integer,
  ports             jsonb not null default '[]',
  env               jsonb not null default '{}',
  egress_policy     jsonb,
  persistent        boolean not null default false,
  spot              boolean not null default false,
  cpu_arch          text not null,
  volume_count      integer not null default 0,

  image_ref         text not null,
  -- Resolved source of the root file system, as the runner gets it.
  root              jsonb not null,
  manifest_name     text,
  has_memory        boolean not null default false,
  forked_from       uuid,

  vm_ip             text,
  host_ip           text,
  port_map          jsonb not null default '[]',
  access_token_hash bytea not null check (octet_length(access_token_hash) = 32),

  spot_evicted_at   timestamptz,
  created_at        timestamptz not null default now(),
  updated_at        timestamptz not null default now(),
  deleted_at        timestamptz
)
-- Every sandbox is updated a few times soon after it was written: room on the same page keeps that cheap.
with (fillfactor = 80);
create index sandboxes_newest on sandboxes (project_id, created_at desc, id desc) where status <> 'deleted';
create index sandboxes_pending on sandboxes (created_at) where status = 'pending';
create index sandboxes_overdue on sandboxes (deadline_at) where deadline_at is not null;
create index sandboxes_held on sandboxes (runner_id) where held;

-- The queue of durable work, and the public job records.
create table jobs (
  id          uuid primary key,
  -- Null for the jobs of built-in images, which no project sees.
  project_id  uuid references projects (id),
  kind        text not null,
  status      text not null check (status in ('queued', 'running', 'done', 'failed')),
  -- How often somebody has taken it up. The number is the fencing token of the lease.
  attempts    integer not null default 0,
  lease_until timestamptz,
  run_after   timestamptz not null default now(),
  runner_id   uuid,
  sandbox_id  uuid,
  image_id    uuid,
  payload     jsonb not null default '{}',
  error       text,
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  finished_at timestamptz
)
with (fillfactor = 80);
create index jobs_queue on jobs (run_after) where kind = 'build' and status in ('queued', 'running');
create index jobs_by_image on jobs (image_id) where image_id is not null;
