-- compatible-with: 41
-- transaction: none
-- A name is looked up, and found to be taken, among all sandboxes of a project. Names never change.
create index concurrently if not exists sandboxes_by_name on sandboxes (project_id, (spec ->> 'name')) where status <> 'deleted';
