-- compatible-with: 41
-- Invocations are charged while they run.

alter table invocations
  -- Of the attempt in progress: so many microseconds are in `billed` already.
  add column charged_us bigint,
  -- Of a synchronous one that its gateway has reported as running: when it last did. Null once its end is recorded.
  add column reported_at timestamptz;
