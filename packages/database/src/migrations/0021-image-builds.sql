-- What an image was built to stays while its name is rebuilt: manifest_name, layer_count, bytes and built_at are those of
-- the newest successful build.
alter table images
  -- What sandboxes boot while the status is not ready: the source of the build before, by digest.
  add column previous_root jsonb,
  add column bytes bigint check (bytes >= 0),
  add column built_at timestamptz;
