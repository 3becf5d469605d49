/**
 * Tables in partitions of a day or a month each (UTC): they are made ahead, and dropped when all of their rows are older
 * than the retention. What a service that made none in time has stored is in the default partition.
 */
import { queryAll, queryOne, statement, type Database, type Statement } from '@releap/database';
import type { Logger } from 'pino';

export interface PartitionedTable {
  table: string;
  period: 'day' | 'month';
  /** How many periods before the present one are made, for rows that come late. */
  behind: number;
  /** How many after it: a service that was down for longer uses the default partition. */
  ahead: number;
  /** How long rows are kept after the end of their partition; absent: for ever. */
  days?: number;
  /** Of the default partition, where its rows may be deleted. */
  purge?: Statement<Record<string, never>>;
}

/** The `purge` of a table. @param column with the time of a row */
export function purgeDefault(table: string, column: string): Statement<Record<string, never>> {
  return statement(
    `partitions-purge-${table}`,
    `delete from ${table}_default where ${column} < now() - $1 * interval '1 day'`,
  );
}

/** None is made of a time that the default partition has rows of. $1 table, $2 period, $3 first, $4 last, 0 is now */
const MAKE = statement<{ low: string; made: boolean }>(
  'partitions-make',
  `select low::text,
          case when $1::text in ('audit_log', 'credit_usage') then make_month_partition($1, low)
               else make_usage_partition($1, low, (low + ('1 ' || $2)::interval)::date) end as made
     from (select (date_trunc($2::text, now() at time zone 'utc') + ahead * ('1 ' || $2)::interval)::date as low
             from generate_series($3::integer, $4::integer) ahead) p`,
);
/** Partitions whose rows are all older. $1 table, $2 retention in days */
const ENDED = statement<{ name: string }>(
  'partitions-ended',
  `select c.relname as name
     from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = $1::text::regclass
      and substring(pg_get_expr(c.relpartbound, c.oid) from 'TO \\(''([^'']+)''\\)')::timestamptz < now() - $2 * interval '1 day'`,
);
const QUOTE = statement<{ name: string }>('partition-quote', 'select quote_ident($1) as name');

/** Makes the partitions of all tables, or none. */
export async function makePartitions(
  database: Database,
  tables: readonly PartitionedTable[],
  log: Logger,
): Promise<void> {
  await withinASecond(database, async (client) => {
    for (const { table, period, behind, ahead } of tables)
      for (const { low, made } of await queryAll(client, MAKE, [table, period, -behind, ahead]))
        if (made) log.info({ table, from: low }, 'made a partition');
  });
}

export async function dropPartitions(
  database: Database,
  tables: readonly PartitionedTable[],
  log: Logger,
): Promise<void> {
  for (const { table, days, purge } of tables) {
    if (days === undefined) continue;
    for (const { name } of await queryAll(database.pool, ENDED, [table, days])) {
      await withinASecond(database, async (client) => {
        const quoted = await queryOne(client, QUOTE, [name]);
        if (quoted !== undefined) await client.query(`drop table ${quoted.name}`);
      });
      log.info({ table, partition: name, days }, 'dropped an expired partition');
    }
    if (purge !== undefined) await queryAll(database.pool, purge, [days]);
  }
}

/** A longer wait for the lock would block every request that writes into the table. */
async function withinASecond(
  database: Database,
  work: Parameters<Database['transaction']>[0],
): Promise<void> {
  await database.transaction(async (client) => {
    await client.query(`set local lock_timeout = '1s'`);
    await work(client);
  });
}
