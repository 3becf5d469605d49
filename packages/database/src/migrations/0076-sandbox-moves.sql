-- compatible-with: 41
-- Moves of stopped and paused sandboxes from one host to another (compute/moves).

-- A drain also moves sandboxes to other hosts.
alter table runners add column drain_move boolean not null default false;

-- The move in progress: until it ends the sandbox is not started. It is the id of the row in `sandbox_moves`, and of the artifact.
alter table sandboxes add column move_id uuid;

-- What a sandbox that does not run has on its host, on its way to another one.
alter table artifacts drop constraint artifacts_kind_check;
alter table artifacts add constraint artifacts_kind_check check (kind in ('image', 'snapshot', 'sandbox'));
alter table artifacts add column sandbox_id uuid;
-- Largest blob that its host may upload, in MiB. Null: that of a root image, and of a snapshot what its sizes say.
alter table artifacts add column blob_max_mib double precision;

create table sandbox_moves (
  id          uuid primary key,
  sandbox_id  uuid not null references sandboxes (id) on delete cascade,
  source_id   uuid not null references runners (id),
  target_id   uuid references runners (id),
  status      text not null check (status in ('waiting', 'storing', 'placing', 'resuming', 'done', 'failed')),
  -- It ran until the drain: it runs again afterwards.
  resumes     boolean not null,
  -- A host that has, or may have, a copy besides the one that the sandbox's row names: the target until the row names it, and the source
  -- afterwards. It is assigned the sandbox in this generation: as it is while the move is `placing`, and as deleted otherwise.
  copy_on     uuid references runners (id),
  generation  integer not null default 0,
  -- The target has reported a complete copy.
  arrived_at  timestamptz,
  -- Of starts after the move.
  attempts    integer not null default 0,
  retry_at    timestamptz,
  error       text,
  -- Since when it has not run, and for how long it did not.
  paused_at   timestamptz,
  pause_ms    double precision,
  deadline_at timestamptz,
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now()
);
create unique index sandbox_moves_in_progress on sandbox_moves (sandbox_id)
  where status in ('waiting', 'storing', 'placing', 'resuming');
create unique index sandbox_moves_copies on sandbox_moves (copy_on, sandbox_id) where copy_on is not null;
create index sandbox_moves_by_sandbox on sandbox_moves (sandbox_id);
create index sandbox_moves_by_source on sandbox_moves (source_id, created_at);
