-- compatible-with: 33
-- The queue of invocations: by function, so that none waits behind the backlog of another, and what servers run now.

create index invocations_pending on invocations (function_id, queued_at) where status = 'pending';
create index invocations_running on invocations (queued_at) where status = 'running';
drop index invocations_waiting;
