-- compatible-with: 38
-- Deleted functions, whose names have a slash, without reading all others.
create index functions_deleted on functions (id) where position('/' in name) > 0;
