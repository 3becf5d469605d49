/** Partitions: those of months are created ahead, and all are dropped after the retention of their table. */
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';

/** Two months ahead: a service that was down for longer uses the default partition. */
const MAKE = statement<{ parent: string; month: string; made: boolean }>(
  'partitions-make',
  `select parent, to_char(month, 'YYYY-MM') as month, make_month_partition(parent, month) as made
     from unnest(array['audit_log', 'credit_usage']) parent,
          lateral (select (date_trunc('month', now() at time zone 'utc') + ahead * interval '1 month')::date as month
                     from generate_series(0, 2) ahead) m`,
);
/** Partitions whose rows are all older. $1 table, $2 retention in days */
const ENDED = statement<{ name: string }>(
  'partitions-ended',
  `select c.relname as name
     from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = $1::text::regclass
      and substring(pg_get_expr(c.relpartbound, c.oid) from 'TO \\(''([^'']+)''\\)')::timestamptz < now() - $2 * interval '1 day'`,
);

export async function makePartitions(database: Database, log: Logger): Promise<void> {
  await database.transaction(async (client) => {
    await client.query(`set local lock_timeout = '1s'`);
    for (const { parent, month, made } of await queryAll(client, MAKE))
      if (made) log.info({ table: parent, month }, 'made a partition');
  });
}

/** @param days how long rows are kept after the end of their partition */
export async function dropEndedPartitions(
  database: Database,
  { table, days }: { table: string; days: number },
  log: Logger,
): Promise<void> {
  for (const { name } of await queryAll(database.pool, ENDED, [table, days])) {
    await dropPartition(database, name);
    log.info({ table, partition: name, days }, 'dropped an expired partition');
  }
}

/** Drops one partition, within a second or not at all. @param name of its table, from the catalog */
async function dropPartition(database: Database, name: string): Promise<void> {
  await database.transaction(async (client) => {
    // A longer wait would block every request that writes into the table.
    await client.query(`set local lock_timeout = '1s'`);
    const quoted = await queryOne(client, QUOTE, [name]);
    if (quoted !== undefined) await client.query(`drop table ${quoted.name}`);
  });
}

const QUOTE = statement<{ name: string }>('partition-quote', 'select quote_ident($1) as name');
