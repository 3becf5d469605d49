-- compatible-with: 41
-- transaction: none
-- Counts the backlog of one organization.
create index concurrently if not exists invocation_payloads_of_org on invocation_payloads (org_id) where org_id is not null;
