-- The end of the log of a build that has ended.
alter table jobs add column log_tail text;
