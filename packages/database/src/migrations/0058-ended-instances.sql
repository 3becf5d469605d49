-- compatible-with: 41
-- Rows of instances of functions stay for an hour after their end, for the logs. What looks for instances that live does not read them.
alter table function_instances add column ended_at timestamptz;

create function end_function_instance() returns trigger language plpgsql as $$
begin
  update function_instances set ended_at = now() where sandbox_id = new.id;
  return null;
end $$;
create trigger function_instance_end after update of status on sandboxes
  for each row when (new.owner_service = 'functions' and new.status = 'deleted' and old.status <> 'deleted')
  execute function end_function_instance();
