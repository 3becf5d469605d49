-- compatible-with: 32
-- The report reads a time range of all invocations of a project; its teardown removes them.
create index invocations_of_project on invocations (project_id, queued_at);
