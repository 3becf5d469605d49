-- compatible-with: 41
-- Tokens of the operator with which further machines join as hosts. Control servers of earlier versions refuse them.
create table join_tokens (
  id         uuid primary key,
  -- SHA-256 of the whole token.
  digest     bytea not null unique check (octet_length(digest) = 32),
  name       text,
  uses       integer not null check (uses >= 1),
  uses_left  integer not null check (uses_left between 0 and uses),
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  revoked_at timestamptz
);
