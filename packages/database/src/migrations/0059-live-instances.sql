-- compatible-with: 41
-- transaction: none
-- Not by the end of the lease: then each renewal would write to every index of the table.
create index concurrently if not exists function_instances_live on function_instances (function_id) where ended_at is null;
