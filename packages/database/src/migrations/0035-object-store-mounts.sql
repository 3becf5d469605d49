-- compatible-with: 34
-- What a sandbox signs with at the proxy of its host: of use for this mount alone. A fork has those of its source in its memory.

alter table object_store_mounts add column guest_access_key text not null default '';
alter table object_store_mounts add column guest_secret_key text not null default '';
