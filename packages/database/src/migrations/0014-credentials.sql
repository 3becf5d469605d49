-- A credential for each runner, and keys that all control servers share.

-- Only digests of credentials are stored: SHA-256 of the whole token. The runner generates its credential itself.
create table runner_credentials (
  id           uuid primary key,
  -- Not a reference: a runner joins before its first hello makes its row.
  runner_id    uuid not null,
  digest       bytea not null unique check (octet_length(digest) = 32),
  created_at   timestamptz not null default now(),
  last_used_at timestamptz,
  revoked_at   timestamptz
);
create index runner_credentials_by_runner on runner_credentials (runner_id);

-- Permissions of the operator to join as one runner whose id is known already. Each works once.
create table runner_join_grants (
  digest     bytea primary key check (octet_length(digest) = 32),
  runner_id  uuid not null,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  used_at    timestamptz
);

-- Random keys of the whole deployment, each encrypted with the key-encryption key. `key_id` is null where a server was
-- started without one: then the value is stored as it is.
create table service_keys (
  name       text primary key,
  key_id     text,
  envelope   bytea not null,
  created_at timestamptz not null default now()
);
