-- compatible-with: 41
-- Connections to a host that the operator forgets end with the next pass over grants.
create or replace trigger grants_of_host after update of data_url, forgotten_at on runners
  for each row when (old.data_url is distinct from new.data_url or old.forgotten_at is distinct from new.forgotten_at)
  execute function record_grant_change();
