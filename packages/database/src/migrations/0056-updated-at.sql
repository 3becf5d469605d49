-- compatible-with: 41
-- When functions, schedules and endpoints were changed last; of rows that are older, when this migration ran. A trigger writes it,
-- because servers of the version before do not.

create function set_updated_at() returns trigger language plpgsql as $$
begin
  new.updated_at := now();
  return new;
end $$;

alter table functions add column updated_at timestamptz not null default now();
alter table function_schedules add column updated_at timestamptz not null default now();
alter table endpoints add column updated_at timestamptz not null default now();

create trigger functions_updated_at before update on functions
  for each row execute function set_updated_at();
create trigger function_schedules_updated_at before update on function_schedules
  for each row execute function set_updated_at();
create trigger endpoints_updated_at before update on endpoints
  for each row execute function set_updated_at();
