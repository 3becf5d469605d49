-- compatible-with: 28
-- Functions: HTTP handlers that run in sandboxes of the service, which are started when requests arrive and end when none do.

create table functions (
  id              uuid primary key,
  project_id      uuid not null references projects (id),
  name            text not null,
  -- Where its instances run: the default region of its project when it was created.
  region          text not null,
  -- The newest version number; `current_version` follows when that version can serve.
  latest_version  integer not null,
  current_version integer,
  public          boolean not null default false,
  -- Digest of the token of its public endpoint; null when none is needed.
  token_hash      bytea,
  -- Grows with every change that gateways must see.
  revision        bigint not null default 1,
  created_at      timestamptz not null default now(),
  unique (project_id, name)
);
create index functions_newest on functions (project_id, created_at desc, id desc);

create table function_versions (
  id                 uuid primary key,
  function_id        uuid not null references functions (id) on delete cascade,
  project_id         uuid not null,
  version            integer not null,
  image_ref          text not null,
  -- Where runners find the root file system; null while its image is built.
  root               jsonb,
  handler            jsonb not null,
  port               integer not null,
  vcpus              integer not null,
  mem_mib            integer not null,
  scratch_mib        integer not null,
  env                jsonb not null,
  snapshot_kind      text not null check (snapshot_kind in ('pre_entrypoint', 'fn_ready')),
  timeout_s          integer not null,
  scaledown_window_s integer not null,
  max_concurrency    integer not null,
  max_instances      integer,
  -- `building`: of its image. `pending`: a first instance is tried. `failed`: with the reason in `template_error`.
  template_state     text not null check (template_state in ('building', 'pending', 'published', 'failed')),
  template_error     text,
  -- The image that was uploaded with it, and the job that builds it.
  image_id           uuid,
  build_job          uuid,
  created_at         timestamptz not null default now(),
  unique (function_id, version)
);
create index function_versions_unfinished on function_versions (created_at) where template_state in ('building', 'pending');

-- Sandboxes that serve a version. A gateway leases each: only the holder of the newest epoch sends requests to it.
create table function_instances (
  sandbox_id  uuid primary key references sandboxes (id) on delete cascade,
  function_id uuid not null,
  version_id  uuid not null,
  project_id  uuid not null,
  -- `serve`: requests; `probe`: tries a version, and is captured once its handler answers.
  purpose     text not null check (purpose in ('serve', 'probe')),
  -- Null while no gateway has it.
  gateway_id  uuid,
  epoch       bigint not null default 1,
  lease_until timestamptz,
  created_at  timestamptz not null default now()
);
create index function_instances_of_function on function_instances (function_id);
create index function_instances_of_version on function_instances (version_id);
create index function_instances_of_gateway on function_instances (gateway_id);

-- Memory and disk of an instance whose handler was ready, on one host (`fn_ready`).
create table function_templates (
  version_id  uuid not null references function_versions (id) on delete cascade,
  snapshot_id uuid not null,
  runner_id   uuid not null,
  created_at  timestamptz not null default now(),
  primary key (version_id, snapshot_id)
);

create table function_schedules (
  id          uuid primary key,
  function_id uuid not null references functions (id) on delete cascade,
  project_id  uuid not null,
  cron        text not null,
  payload     json,
  enabled     boolean not null,
  next_run_at timestamptz,
  last_run_at timestamptz,
  created_at  timestamptz not null default now()
);
create index function_schedules_newest on function_schedules (function_id, created_at desc, id desc);
create index function_schedules_due on function_schedules (next_run_at) where enabled;

-- Calls of functions. Those that wait for nobody (spawn, map, schedules) are written before they run; synchronous ones after.
create table invocations (
  id           uuid not null,
  queued_at    timestamptz not null,
  project_id   uuid not null,
  function_id  uuid not null,
  version_id   uuid,
  version      integer,
  source       text not null check (source in ('invoke', 'public', 'spawn', 'map', 'schedule')),
  status       text not null check (status in ('pending', 'running', 'succeeded', 'failed', 'timeout', 'shed')),
  -- Attempts so far; the number of the running one fences its result.
  attempt      integer not null default 0,
  -- Until when the server that runs it has it for itself.
  lease_until  timestamptz,
  started_at   timestamptz,
  finished_at  timestamptz,
  -- Of the handler, from the first byte sent to the last one received.
  duration_ms  double precision,
  cold         boolean,
  error        text,
  -- As the handler wrote it: `jsonb` would change it.
  result       json,
  schedule_id  uuid,
  primary key (id, queued_at)
) partition by range (queued_at);
create index invocations_newest on invocations (function_id, queued_at desc, id desc);
create index invocations_waiting on invocations (queued_at) where status in ('pending', 'running');
create table invocations_default partition of invocations default;
select make_usage_partition('invocations', day, day + 1)
  from (select (now() at time zone 'utc')::date + ahead as day from generate_series(-1, 3) ahead) d;

-- Bodies of invocations that have not ended, apart from the rows that lists read.
create table invocation_payloads (
  invocation_id uuid primary key,
  content_type  text not null,
  body          bytea not null
);
