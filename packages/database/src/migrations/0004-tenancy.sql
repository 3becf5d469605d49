-- People, as their issuer knows them. `issuer` is the name under which an installation keeps the users of its issuer:
-- its URL, or a fixed name for the development identity provider, whose port may change.
create table users (
  id             uuid primary key,
  issuer         text not null,
  subject        text not null,
  -- Empty when the issuer tells none. Such a user cannot be invited.
  email          text not null,
  -- False only when the issuer says so.
  email_verified boolean not null default true,
  name           text not null,
  created_at     timestamptz not null default now(),
  updated_at     timestamptz not null default now(),
  unique (issuer, subject)
);

alter table organizations
  -- Whose personal organization it is. It accepts nobody else and cannot be deleted.
  add column personal_of uuid unique references users (id),
  -- The one that an all-in-one server makes for itself. Nobody is a member of it.
  add column bootstrap   boolean not null default false,
  -- From this moment on it does not exist for anybody; what is in it is torn down in the background.
  add column deleted_at  timestamptz;
create unique index organizations_one_bootstrap on organizations (bootstrap) where bootstrap;

alter table projects
  add column deleted_at     timestamptz,
  -- When the background work is to look at it next. Null: nothing is (any more) to be torn down.
  add column teardown_after timestamptz,
  -- When nothing of it was left.
  add column torn_down_at   timestamptz,
  drop constraint projects_org_id_name_key;
create unique index projects_by_name on projects (org_id, name) where deleted_at is null;
create index projects_of_org on projects (org_id, created_at);
create index projects_teardown on projects (teardown_after) where teardown_after is not null;

-- For the teardown, which looks at what has ended too.
create index sandboxes_ended on sandboxes (project_id) where status = 'deleted';

update organizations set bootstrap = true
 where id = (select o.id from organizations o join projects p on p.org_id = o.id and p.name = 'default'
              where o.name = 'default' order by o.created_at limit 1);

create unique index api_keys_one_default on api_keys (project_id) where name = 'default' and revoked_at is null;
-- What lists show: the newest first.
create index api_keys_newest on api_keys (project_id, created_at desc, id desc);
drop index api_keys_by_project;

create table members (
  org_id     uuid not null references organizations (id),
  user_id    uuid not null references users (id),
  role       text not null check (role in ('owner', 'member')),
  created_at timestamptz not null default now(),
  primary key (org_id, user_id)
);
create index members_by_user on members (user_id);

create table invitations (
  id          uuid primary key,
  org_id      uuid not null references organizations (id),
  -- As it was written, and as it is compared.
  email       text not null,
  email_key   text not null,
  role        text not null check (role in ('owner', 'member')),
  invited_by  uuid not null references users (id),
  created_at  timestamptz not null default now(),
  expires_at  timestamptz not null,
  accepted_at timestamptz,
  accepted_by uuid references users (id)
);
-- One pending invitation for an address: inviting it again refreshes that one.
create unique index invitations_pending on invitations (org_id, email_key) where accepted_at is null;
create index invitations_by_email on invitations (email_key) where accepted_at is null;

-- Who did what, when and from where. Rows are written in the transaction of what they tell, and never change.
create table audit_log (
  id          uuid primary key,
  org_id      uuid not null references organizations (id),
  project_id  uuid references projects (id),
  -- user: `actor_id` is a user. operator: somebody with a shell on a server. system: the service itself.
  actor_kind  text not null check (actor_kind in ('user', 'operator', 'system')),
  actor_id    text,
  -- How people know the actor: the e-mail address at the time.
  actor_name  text,
  action      text not null,
  target_kind text not null,
  target_id   text not null,
  details     jsonb not null default '{}',
  ip          text,
  user_agent  text,
  outcome     text not null check (outcome in ('done', 'refused')),
  created_at  timestamptz not null default clock_timestamp()
);
create index audit_log_newest on audit_log (org_id, created_at desc, id desc);

create function audit_log_is_append_only() returns trigger language plpgsql as
$$ begin raise exception 'the audit log is append-only'; end $$;
create trigger audit_log_append_only before update or delete or truncate on audit_log
  for each statement execute function audit_log_is_append_only();
