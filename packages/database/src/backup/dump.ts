/** The content of the database in one snapshot, while servers use it. */
import type { Client } from 'pg';
import type { Logger } from 'pino';
import { newClient } from '../connection.ts';
import { readApplied } from '../migrate.ts';
import { copyOut } from './copy.ts';
import { type DumpedSequence, type DumpedTable, readSequences, readTables, SESSION } from './catalog.ts';

export interface AppliedMigration {
  id: number;
  name: string;
  checksum: string;
}

export interface DatabaseDump extends AsyncDisposable {
  readonly migrations: readonly AppliedMigration[];
  readonly tables: readonly DumpedTable[];
  /** The rows of a table, in COPY's text format. One table at a time. */
  rows(table: DumpedTable): AsyncIterable<Uint8Array>;
  /** After the rows: a sequence belongs to no snapshot, and must not be behind them. */
  sequences(): Promise<DumpedSequence[]>;
  /** Reads in the same snapshot. */
  query<T extends object>(sql: string): Promise<T[]>;
}

const quote = (name: string): string => `"${name.replaceAll('"', '""')}"`;

/** @throws when the database cannot be reached, has no schema, or is being migrated */
export async function dumpDatabase(url: string, log: Logger): Promise<DatabaseDump> {
  const client = newClient(url, {
    connectionTimeoutMillis: 10_000,
    application_name: 'releap-backup',
    keepAlive: true,
  });
  client.on('error', (error) => log.debug({ err: error }, 'the connection of the backup broke'));
  await client.connect();
  const close = (): Promise<void> => client.end();
  try {
    await client.query(SESSION);
    const { migrations, tables } = await beginSnapshot(client);
    return {
      migrations,
      tables,
      rows: ({ name, columns }) =>
        // A table with partitions can only be copied by a query.
        copyOut(client, `copy (select ${columns.map(quote).join(', ')} from ${quote(name)}) to stdout`),
      sequences: () => readSequences(client),
      query: async <T extends object>(sql: string) => (await client.query<T>(sql)).rows,
      [Symbol.asyncDispose]: close,
    };
  } catch (error) {
    await close().catch(() => undefined);
    throw error;
  }
}

/** Nothing may change or drop a table of the snapshot until the end of the transaction: TRUNCATE and DROP ignore snapshots. */
async function beginSnapshot(
  client: Client,
): Promise<{ migrations: AppliedMigration[]; tables: DumpedTable[] }> {
  const found = await readTables(client);
  if (found.length === 0 || (await readApplied(client)).length === 0)
    throw new Error('the database has no schema yet: there is nothing to back up');
  await client.query('begin isolation level repeatable read, read only');
  // Before the first query, which takes the snapshot.
  await client.query(`lock table ${found.map(({ name }) => quote(name)).join(', ')} in access share mode`);
  const [tables, applied] = [await readTables(client), await readApplied(client)];
  if (JSON.stringify(tables.map(({ name }) => name)) !== JSON.stringify(found.map(({ name }) => name)))
    throw new Error('the database was migrated just now: make the backup again');
  return { tables, migrations: applied.map(({ id, name, checksum }) => ({ id, name, checksum })) };
}
