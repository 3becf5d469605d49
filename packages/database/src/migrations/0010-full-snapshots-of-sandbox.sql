-- Whether a full snapshot of a sandbox is left decides about its placeholders and about deleted secrets.
create index snapshots_full_of_sandbox on snapshots (sandbox_id) where kind = 'full' and status <> 'deleted';
