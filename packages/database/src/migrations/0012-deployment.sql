-- Which deployment this database belongs to. A runner joins one deployment and refuses to act for any other, so that a
-- control plane that is pointed at the wrong database, or a runner at the wrong control plane, destroys nothing.
create table deployment (
  id         uuid primary key default gen_random_uuid(),
  one        boolean not null default true unique check (one),
  created_at timestamptz not null default now()
);
insert into deployment default values;
