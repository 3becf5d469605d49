-- The operator has given the host up: it is listed no more, and nobody can speak for it.
alter table runners add column forgotten_at timestamptz;
