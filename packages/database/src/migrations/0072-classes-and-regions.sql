-- compatible-with: 41
-- Classes of hardware, which sandboxes may ask for and hosts have. Kinds are named like the fields of POST /vms.
create table hardware_classes (
  kind       text not null check (kind in ('cpu_type', 'network_class', 'disk_class')),
  slug       text not null,
  name       text not null,
  tier       integer not null check (tier >= 1),
  arch       text check ((kind = 'cpu_type') = (arch is not null)),
  -- Parts of the names of processors that are of this class.
  cpu_models text[] not null default '{}',
  primary key (kind, slug)
);

-- Set by the operator, slugs by kind: they win over those that the runner declares in its facts.
alter table runners add column classes jsonb not null default '{}';

-- The classes that sandboxes have asked for, slugs by kind. Read when a class is deleted, which is rare: no index.
create view sandbox_classes as
  select id, spec -> 'classes' as classes from sandboxes where (spec -> 'classes') is not null and status <> 'deleted';

-- What is in each region, for the operator. Rows of what was deleted refer to their region until they are purged.
create view region_contents as
  select region, 'sandbox' as what, status = 'deleted' as deleted from sandboxes
  union all select region, 'snapshot', status = 'deleted' from snapshots
  union all select region, 'image', false from images where region is not null
  union all select region, 'function', position('/' in name) > 0 from functions;
