-- compatible-with: 30
-- Whether a version of a function needs what an image was built to.
create index function_versions_by_root on function_versions (project_id, (root ->> 'digest'));
