/** Fills a database from a dump. The schema comes from the migrations, the rows from the dump, all in one transaction. */
import type { Client } from 'pg';
import type { Logger } from 'pino';
import { newClient } from '../connection.ts';
import { checkHistory, migrate } from '../migrate.ts';
import { readMigrations } from '../migrations.ts';
import { assertOwnSession } from '../session-check.ts';
import {
  type DumpedSequence,
  type DumpedTable,
  type ForeignKey,
  readForeignKeys,
  readTables,
  SESSION,
} from './catalog.ts';
import { copyIn } from './copy.ts';
import type { AppliedMigration } from './dump.ts';

const quote = (name: string): string => `"${name.replaceAll('"', '""')}"`;

/** @throws when this version does not know the schema. @param schema number of the newest migration */
export async function assertKnownSchema(schema: number): Promise<void> {
  const known = (await readMigrations()).length;
  if (schema > known)
    throw new Error(
      `the backup has schema ${schema}, and this version knows ${known}: it was made by a newer version. Restore it with that version or a later one`,
    );
}

/** Tables, views and sequences of the database; none in an empty one. */
export async function contentOf(url: string, log: Logger): Promise<string[]> {
  await using connection = await connect(url, log);
  const { rows } = await connection.client.query<{ name: string }>(
    `select relname as name from pg_class where relnamespace = current_schema()::regnamespace and relkind in ('r', 'p', 'v', 'm', 'S')
      order by relname`,
  );
  return rows.map(({ name }) => name);
}

/**
 * What has filled a database that has rows of a service: the id of the backup, or undefined for anything else.
 * @returns `nothing` for a database without them: it is empty, or was only migrated
 */
export async function restoredFrom(
  url: string,
  log: Logger,
): Promise<'nothing' | { backup: string | undefined }> {
  await using connection = await connect(url, log);
  const { client } = connection;
  const { rows: tables } = await client.query(`select 1 where to_regclass('deployment') is not null`);
  if (tables.length === 0) return 'nothing';
  const { rows } = await client.query<{ used: boolean; comment: string | null }>(
    `select exists (select 1 from organizations) or exists (select 1 from regions) as used,
            obj_description('deployment'::regclass) as comment`,
  );
  const backup = /^restored from backup (\S+)$/.exec(rows[0]?.comment ?? '')?.[1];
  return rows[0]?.used === true || backup !== undefined ? { backup } : 'nothing';
}

/** Brings an empty database to the schema that the dump has. @throws when this version has other migrations */
export async function migrateTo(
  url: string,
  applied: readonly AppliedMigration[],
  log: Logger,
): Promise<void> {
  const migrations = (await readMigrations()).slice(0, applied.length);
  checkHistory(
    applied.map((row) => ({ ...row, compatible_with: null })),
    migrations,
    log,
  );
  await assertOwnSession(url);
  await migrate({ url, log, migrations });
}

/**
 * One transaction, which `commit` ends. Triggers are off and foreign keys are away meanwhile, so that tables can come in any order and
 * rows are taken as they are; foreign keys are checked when they are added again.
 */
export class DatabaseLoad implements AsyncDisposable {
  readonly #client: Client;
  readonly #close: () => Promise<void>;
  readonly #tables: ReadonlyMap<string, DumpedTable>;
  readonly #keys: readonly ForeignKey[];

  private constructor(
    client: Client,
    close: () => Promise<void>,
    tables: ReadonlyMap<string, DumpedTable>,
    keys: readonly ForeignKey[],
  ) {
    this.#client = client;
    this.#close = close;
    this.#tables = tables;
    this.#keys = keys;
  }

  /** To be called only for a database that `restoredFrom` finds nothing in: what migrations have written is removed. */
  static async begin(url: string, log: Logger): Promise<DatabaseLoad> {
    const { client, close } = await connect(url, log);
    try {
      await client.query('begin');
      const tables = await readTables(client);
      const keys = await readForeignKeys(client);
      for (const { table, name } of keys) await client.query(`alter table ${table} drop constraint ${name}`);
      for (const name of relationsOf(tables))
        await client.query(`alter table ${quote(name)} disable trigger user`);
      await client.query(`truncate ${tables.map(({ name }) => quote(name)).join(', ')}`);
      return new DatabaseLoad(client, close, new Map(tables.map((table) => [table.name, table])), keys);
    } catch (error) {
      await close().catch(() => undefined);
      throw error;
    }
  }

  /** Whether the schema has it. */
  has(table: string): boolean {
    return this.#tables.has(table);
  }

  /** @returns the number of rows */
  async table({ name, columns, partitions }: DumpedTable, rows: AsyncIterable<Uint8Array>): Promise<number> {
    const own = this.#tables.get(name);
    if (own === undefined) throw new Error(`the schema has no table ${name}`);
    for (const partition of partitions) await this.#makePartition(own, partition);
    return await copyIn(
      this.#client,
      `copy ${quote(name)} (${columns.map(quote).join(', ')}) from stdin`,
      rows,
    );
  }

  /** @param backup its id, by which `restoredFrom` recognizes the database */
  async commit(sequences: readonly DumpedSequence[], backup: string): Promise<void> {
    const client = this.#client;
    for (const { name, value } of sequences)
      await client.query('select setval(to_regclass($1), $2::bigint)', [quote(name), value]);
    await this.#fenceHosts();
    const tables = await readTables(client);
    for (const name of relationsOf(tables))
      await client.query(`alter table ${quote(name)} enable trigger user`);
    for (const { table, name, definition } of this.#keys)
      await client.query(`alter table ${table} add constraint ${name} ${definition}`);
    await client.query(
      `comment on table deployment is ${client.escapeLiteral(`restored from backup ${backup}`)}`,
    );
    await client.query('commit');
    await client.query('analyze');
  }

  /** Rolls back unless it was committed. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#close();
  }

  /**
   * Hosts may have seen later generations than the dump has, and ignore older ones. So generations continue from the number of
   * seconds since 2026, which is ahead of all that a service has counted, also after an earlier restore: a change takes longer.
   */
  async #fenceHosts(): Promise<void> {
    for (const { name, columns } of this.#tables.values()) {
      if (!columns.includes('generation')) continue;
      await this.#client.query(
        `update ${quote(name)} set generation = greatest(generation + 1, extract(epoch from now() - timestamptz '2026-01-01Z')::integer)`,
      );
    }
  }

  /** Of a month or a day that the schema does not have yet. A time that another partition covers stays with that one. */
  async #makePartition({ name, partitions }: DumpedTable, partition: string): Promise<void> {
    if (partitions.includes(partition)) return;
    const [, year, month, day] = /_(\d{4})_(\d{2})(?:_(\d{2}))?$/.exec(partition) ?? [];
    if (year === undefined || partition !== `${name}_${year}_${month}${day === undefined ? '' : `_${day}`}`)
      return;
    const low = `${year}-${month}-${day ?? '01'}`;
    await (['audit_log', 'credit_usage'].includes(name)
      ? this.#client.query('select make_month_partition($1, $2::date)', [name, low])
      : this.#client.query(`select make_usage_partition($1, $2::date, ($2::date + $3::interval)::date)`, [
          name,
          low,
          day === undefined ? '1 month' : '1 day',
        ]));
    await this.#client.query(`alter table if exists ${quote(partition)} disable trigger user`);
  }
}

const relationsOf = (tables: readonly DumpedTable[]): string[] =>
  tables.flatMap(({ name, partitions }) => [name, ...partitions]);

interface Connection extends AsyncDisposable {
  client: Client;
  close: () => Promise<void>;
}

async function connect(url: string, log: Logger): Promise<Connection> {
  const client = newClient(url, {
    connectionTimeoutMillis: 10_000,
    application_name: 'releap-restore',
    keepAlive: true,
  });
  client.on('error', (error) => log.debug({ err: error }, 'the connection of the restore broke'));
  await client.connect();
  const close = (): Promise<void> => client.end();
  try {
    await client.query(SESSION);
  } catch (error) {
    await close().catch(() => undefined);
    throw error;
  }
  return { client, close, [Symbol.asyncDispose]: close };
}
