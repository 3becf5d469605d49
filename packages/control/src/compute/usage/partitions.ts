/** Partitions of the records of use: made ahead, and dropped after their retention. */
import { queryAll, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { dropEndedPartitions } from '../../platform/retention/partitions.ts';
import type { UsageSettings } from './settings.ts';

/**
 * From the oldest that a runner may still send to three days and two months ahead. Of a time that the default partition has
 * rows of, none is made. $1 retention of minutes in days
 */
const MAKE = statement<{ parent: string; low: string; made: boolean }>(
  'usage-partitions-make',
  `select parent, low::text, make_usage_partition(parent, low, high) as made
     from (select 'usage_minutes' as parent, day as low, day + 1 as high
             from (select (now() at time zone 'utc')::date + ahead as day from generate_series(-$1::integer - 1, 3) ahead) d
           union all
           select 'usage_hours', month::date, (month + interval '1 month')::date
             from (select date_trunc('month', now() at time zone 'utc') + ahead * interval '1 month' as month
                     from generate_series(-1, 2) ahead) m) p
    where to_regclass(parent || case when high - low = 1 then to_char(low, '_YYYY_MM_DD') else to_char(low, '_YYYY_MM') end) is null`,
);

/** What a service that made no partitions in time has stored. $1 retention in days */
const PURGE_MINUTES = statement(
  'usage-minutes-purge',
  `delete from usage_minutes_default where minute < now() - $1 * interval '1 day'`,
);
const PURGE_HOURS = statement(
  'usage-hours-purge',
  `delete from usage_hours_default where hour < now() - $1 * interval '1 day'`,
);

export async function makeUsagePartitions(
  database: Database,
  settings: UsageSettings,
  log: Logger,
): Promise<void> {
  const made = await database.transaction(async (client) => {
    await client.query(`set local lock_timeout = '1s'`);
    return await queryAll(client, MAKE, [settings.minuteDays]);
  });
  const count = made.filter((one) => one.made).length;
  if (count > 0) log.info({ count }, 'made partitions for the records of use');
}

/** Minutes are kept for a day longer than they are accepted, so that no repeated piece is counted again. */
export async function dropUsagePartitions(
  database: Database,
  settings: UsageSettings,
  log: Logger,
): Promise<void> {
  const tables = [
    { table: 'usage_minutes', days: settings.minuteDays + 1, purge: PURGE_MINUTES },
    { table: 'usage_hours', days: settings.hourDays, purge: PURGE_HOURS },
  ];
  for (const { table, days, purge } of tables) {
    await dropEndedPartitions(database, { table, days }, log);
    await queryAll(database.pool, purge, [days]);
  }
}
