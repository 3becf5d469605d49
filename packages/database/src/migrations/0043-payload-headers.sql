-- compatible-with: 41
-- Headers of the client that the handler of a spawned invocation gets. Null: its content type alone.
alter table invocation_payloads add column headers jsonb;
