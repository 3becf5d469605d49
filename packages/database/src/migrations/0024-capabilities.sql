-- What runners can do: sandboxes and builds of Dockerfiles need hosts that build them. Null: an older server wrote the row.
alter table runners add column capabilities text[];
