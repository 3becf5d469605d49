-- compatible-with: 41
-- What grants of gateways depend on, as it changes: a server looks only at the grants that depend on one of these, several times a second.
create table grant_changes (
  -- The id of an API key, a project, an endpoint, a host or a function; of a preview link, its digest in hexadecimal.
  subject text not null,
  at      timestamptz not null default clock_timestamp()
);
create index grant_changes_by_time on grant_changes (at);

create function record_grant_change() returns trigger language plpgsql as $$
begin
  insert into grant_changes (subject) values (case tg_op when 'DELETE' then old.id else new.id end);
  return null;
end $$;

create function record_change_of_preview_link() returns trigger language plpgsql as $$
begin
  insert into grant_changes (subject) values (encode(old.digest, 'hex'));
  return null;
end $$;

create trigger grants_of_key after update of revoked_at on api_keys
  for each row when (old.revoked_at is null and new.revoked_at is not null) execute function record_grant_change();
create trigger grants_of_removed_key after delete on api_keys for each row execute function record_grant_change();
create trigger grants_of_project after update of deleted_at on projects
  for each row when (old.deleted_at is null and new.deleted_at is not null) execute function record_grant_change();
create trigger grants_of_endpoint after update of public on endpoints
  for each row when (old.public is distinct from new.public) execute function record_grant_change();
create trigger grants_of_removed_endpoint after delete on endpoints for each row execute function record_grant_change();
create trigger grants_of_link after update of expires_at on preview_links
  for each row when (new.expires_at < old.expires_at) execute function record_change_of_preview_link();
-- One that has expired is known to those who hold a grant of it.
create trigger grants_of_removed_link after delete on preview_links
  for each row when (old.expires_at > now()) execute function record_change_of_preview_link();
create trigger grants_of_host after update of data_url on runners
  for each row when (old.data_url is distinct from new.data_url) execute function record_grant_change();
create trigger grants_of_removed_host after delete on runners for each row execute function record_grant_change();
create trigger grants_of_function after update of revision on functions
  for each row when (old.revision is distinct from new.revision) execute function record_grant_change();
create trigger grants_of_removed_function after delete on functions for each row execute function record_grant_change();
