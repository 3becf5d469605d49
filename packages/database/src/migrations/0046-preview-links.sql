-- compatible-with: 41
-- Signed preview URLs of the facade, whose host name has the token. A row ends the URL by its expiry or by its deletion.
create table preview_links (
  -- SHA-256 of the token.
  digest      bytea primary key check (octet_length(digest) = 32),
  endpoint_id uuid not null references endpoints (id) on delete cascade,
  expires_at  timestamptz not null
);
create index preview_links_by_endpoint on preview_links (endpoint_id, expires_at);
create index preview_links_expiring on preview_links (expires_at);
