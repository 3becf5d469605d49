-- compatible-with: 35
-- Snapshots of the service's own: templates of functions. Tenants neither list nor delete them.
alter table snapshots add column owner_service text;
create index snapshots_of_services on snapshots (owner_service) where owner_service is not null and status <> 'deleted';
create index function_templates_of_snapshot on function_templates (snapshot_id);
