/** Partitions of invocations, one for each day: made ahead, and dropped after their retention. */
import { queryAll, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { dropEndedPartitions } from '../../platform/retention/partitions.ts';

/** Of a day that the default partition has rows of, none is made. */
const MAKE = statement<{ made: boolean }>(
  'invocation-partitions-make',
  `select make_usage_partition('invocations', day, day + 1) as made
     from (select (now() at time zone 'utc')::date + ahead as day from generate_series(-1, 3) ahead) d
    where to_regclass('invocations' || to_char(day, '_YYYY_MM_DD')) is null`,
);
/** Of invocations that never ended. $1 retention in days */
const PURGE_PAYLOADS = statement(
  'invocation-payloads-purge',
  `delete from invocation_payloads where invocation_id in (
     select id from invocations where status in ('pending', 'running') and queued_at < now() - $1 * interval '1 day')`,
);
/** What a service that made no partitions in time has stored. $1 retention in days */
const PURGE = statement(
  'invocations-purge',
  `delete from invocations_default where queued_at < now() - $1 * interval '1 day'`,
);

export async function makeInvocationPartitions(database: Database, log: Logger): Promise<void> {
  const made = await database.transaction(async (client) => {
    await client.query(`set local lock_timeout = '1s'`);
    return await queryAll(client, MAKE);
  });
  const count = made.filter((one) => one.made).length;
  if (count > 0) log.info({ count }, 'made partitions for invocations');
}

/** @param days how long invocations are kept */
export async function dropInvocationPartitions(database: Database, days: number, log: Logger): Promise<void> {
  await queryAll(database.pool, PURGE_PAYLOADS, [days]);
  await dropEndedPartitions(database, { table: 'invocations', days }, log);
  await queryAll(database.pool, PURGE, [days]);
}
