-- compatible-with: 40
-- Snapshots and artifacts that may be garbage, without reading all others once a minute.
create index snapshots_changed on snapshots (updated_at);
create index artifacts_unneeded on artifacts (unneeded_since) where unneeded_since is not null;
