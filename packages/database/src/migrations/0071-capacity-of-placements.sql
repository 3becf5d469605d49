-- compatible-with: 41
-- A placement is one batch of statements, which does not wait for its server between them: the one that reads the hosts again rolls all
-- of them back with this error (compute/scheduler/place.ts).
create function require_host_capacity(has_capacity boolean) returns void language plpgsql stable as $$
begin
  if has_capacity is not true then
    raise exception 'a host has changed since it was chosen' using errcode = 'RH001';
  end if;
end $$;
