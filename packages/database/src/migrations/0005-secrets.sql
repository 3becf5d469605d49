-- Secrets of projects. Their values are envelopes: sealed with a data key, which key `key_id` wraps.

create table secrets (
  id              uuid primary key,
  project_id      uuid not null references projects (id),
  name            text not null,
  allowed_domains jsonb not null default '[]',
  description     text,
  key_id          text not null,
  envelope        bytea not null,
  created_at      timestamptz not null default now(),
  updated_at      timestamptz not null default now(),
  -- From this moment on it does not exist for its project. The row stays as long as a sandbox may use the value.
  deleted_at      timestamptz
);
create unique index secrets_by_name on secrets (project_id, name) where deleted_at is null;
create index secrets_by_key on secrets (key_id);
create index secrets_deleted on secrets (deleted_at) where deleted_at is not null;

-- What stands for a secret inside one sandbox, as SHA-256. It means something together with its sandbox only.
create table sandbox_secrets (
  -- Deferred, so that placeholders can be made before the row of their sandbox, whose environment they are part of.
  sandbox_id       uuid not null references sandboxes (id) deferrable initially deferred,
  placeholder_hash bytea not null check (octet_length(placeholder_hash) = 32),
  secret_id        uuid not null references secrets (id),
  -- The variable that holds it.
  name             text not null,
  -- Made for the sandbox that this one is a copy of: its memory may still hold it, its environment does not.
  inherited        boolean not null default false,
  primary key (sandbox_id, placeholder_hash)
);
create index sandbox_secrets_by_secret on sandbox_secrets (secret_id);

create table registry_credentials (
  project_id  uuid not null references projects (id),
  -- `host[:port]` in the one spelling that references have.
  host        text not null,
  kind        text not null check (kind in ('basic', 'ghcr', 'gcr', 'ecr')),
  username    text not null,
  description text,
  key_id      text not null,
  envelope    bytea not null,
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now(),
  primary key (project_id, host)
);
create index registry_credentials_by_key on registry_credentials (key_id);
