-- compatible-with: 41
-- Whether the value of a secret may be sent over plain HTTP.
alter table secrets add column allow_http boolean not null default false;
