import { setTimeout as sleep } from 'node:timers/promises';
import type { Client } from 'pg';
import type { Logger } from 'pino';
import { newClient } from './connection.ts';
import { LOCKS, RELEAP_LOCK_SPACE } from './locks.ts';
import { readMigrations, type Migration } from './migrations.ts';

export interface MigrateOptions {
  url: string;
  log: Logger;
  /** Longest wait for another server that migrates, and for locks in total, in milliseconds. */
  lockTimeoutMs?: number;
  /**
   * Longest that one statement waits for a lock, in milliseconds. A wait for a table's strongest lock blocks all
   * that come after; so a migration gives up soon, lets them through and tries again.
   */
  statementLockMs?: number;
  /** Default: the migrations of this package. */
  migrations?: Migration[];
}

interface Applied {
  id: number;
  name: string;
  checksum: string;
  compatible_with: number | null;
}

const POLL_MS = 200;

/**
 * Migrates the schema to this version. An advisory lock serializes servers that start together. A migration is one
 * transaction, unless its first lines say otherwise (migrations.ts), so a crash leaves the schema between two.
 * @returns the ids that were applied by this call.
 * @throws when an applied migration has changed since, or when the database has a newer migration that is not
 * compatible with this version
 */
export async function migrate(options: MigrateOptions): Promise<number[]> {
  const { log, lockTimeoutMs = 120_000, statementLockMs = 2_000 } = options;
  const migrations = options.migrations ?? (await readMigrations());
  const client = newClient(options.url, {
    connectionTimeoutMillis: 10_000,
    lock_timeout: statementLockMs,
    application_name: 'releap-migrate',
  });
  client.on('error', (error) => log.warn({ err: error }, 'the migration connection broke'));
  await client.connect();
  const deadline = performance.now() + lockTimeoutMs;
  try {
    await waitForTurn(client, deadline);
    await client.query(`create table if not exists schema_migrations (
      id integer primary key, name text not null, checksum text not null, applied_at timestamptz not null default now())`);
    const { rows: columns } = await client.query(
      `select 1 from pg_attribute where attrelid = 'schema_migrations'::regclass and attname = 'compatible_with'`,
    );
    if (columns.length === 0)
      await retryLocks(deadline, log, 'schema_migrations', async () => {
        await client.query('alter table schema_migrations add column if not exists compatible_with integer');
      });
    const rows = await readApplied(client);
    checkHistory(rows, migrations, log);
    const applied: Migration[] = [];
    try {
      for (const migration of migrations.slice(rows.length)) {
        await apply(client, migration, deadline, log);
        log.info({ migration: migration.id, name: migration.name }, 'migrated the database');
        applied.push(migration);
      }
    } finally {
      if (applied.some(({ sql }) => CHANGES_COLUMNS.test(sql))) await client.query(DISCONNECT);
    }
    return applied.map(({ id }) => id);
  } finally {
    await client.end();
  }
}

/** None while the table is not there, or does not have the columns of this version yet. */
export async function readApplied(client: Client): Promise<Applied[]> {
  try {
    const { rows } = await client.query<Applied>(
      'select id, name, checksum, compatible_with from schema_migrations order by id',
    );
    return rows;
  } catch (error) {
    if (UNDEFINED.includes((error as { code?: string }).code ?? '')) return [];
    throw error;
  }
}

/** SQLSTATEs of a table and of a column that does not exist. */
const UNDEFINED = ['42P01', '42703'];

/** Released when the connection ends. */
async function waitForTurn(client: Client, deadline: number): Promise<void> {
  for (;;) {
    const { rows } = await client.query<{ got: boolean }>('select pg_try_advisory_lock($1, $2) as got', [
      RELEAP_LOCK_SPACE,
      LOCKS.migrate,
    ]);
    if (rows[0]?.got === true) return;
    if (performance.now() >= deadline)
      throw new Error('another server has been migrating the database for too long: look at its log');
    await sleep(POLL_MS);
  }
}

async function apply(client: Client, migration: Migration, deadline: number, log: Logger): Promise<void> {
  const what = `migration ${migration.id} (${migration.name})`;
  const record = async (): Promise<void> => {
    await client.query(
      'insert into schema_migrations (id, name, checksum, compatible_with) values ($1, $2, $3, $4)',
      [migration.id, migration.name, migration.checksum, migration.compatibleWith ?? null],
    );
  };
  try {
    if (migration.statements === undefined) {
      await retryLocks(deadline, log, what, async () => {
        await client.query('begin');
        try {
          await client.query(migration.sql);
          await record();
          await client.query('commit');
        } catch (error) {
          await client.query('rollback').catch(() => undefined);
          throw error;
        }
      });
      return;
    }
    for (const sql of migration.statements) {
      await retryLocks(deadline, log, what, async () => {
        await dropInvalidIndex(client, sql);
        await client.query(sql);
      });
    }
    await record();
  } catch (error) {
    throw new Error(`${what} failed: ${(error as Error).message}`, { cause: error });
  }
}

/** What may change the result of a statement that a running server has prepared; new tables and indexes do not. */
const CHANGES_COLUMNS = /\balter\s+table\b|\bdrop\s+(?:table|view)\b|\breplace\s+view\b/i;

/**
 * Ends the connections of servers that run on this database, once, after the last migration. Statements that they have prepared may be invalid after a change of columns ("cached plan must not change result type", on every use
 * from then on); a request on an ended connection gets 503 at worst, and the next connection prepares them again.
 */
const DISCONNECT = `select pg_terminate_backend(pid) from pg_stat_activity
  where datname = current_database() and usename = current_user and application_name = 'releap-control' and pid <> pg_backend_pid()`;

/** Invalid indexes of interrupted concurrent builds: they would exist, and never be used. */
async function dropInvalidIndex(client: Client, sql: string): Promise<void> {
  const name = /create\s+(?:unique\s+)?index\s+concurrently\s+if\s+not\s+exists\s+(\w+)/i.exec(sql)?.[1];
  if (name === undefined) return;
  const { rows } = await client.query(
    'select 1 from pg_index where indexrelid = to_regclass($1) and not indisvalid',
    [name],
  );
  if (rows.length > 0) await client.query(`drop index concurrently ${name}`);
}

/** SQLSTATEs of a lock timeout and of a deadlock. */
const LOCKED = ['55P03', '40P01'];

async function retryLocks(
  deadline: number,
  log: Logger,
  what: string,
  work: () => Promise<void>,
): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      await work();
      return;
    } catch (error) {
      const code = (error as { code?: string }).code ?? '';
      if (!LOCKED.includes(code) || performance.now() >= deadline) throw error;
      log.info({ attempt, what }, 'waiting for locks that live requests hold');
      await sleep(Math.min(5_000, 100 * 2 ** attempt) * (0.5 + Math.random()));
    }
  }
}

/** @throws when this version cannot run on what was applied */
export function checkHistory(applied: readonly Applied[], known: readonly Migration[], log: Logger): void {
  for (const [index, row] of applied.entries()) {
    const migration = known[index];
    if (migration === undefined) {
      if (row.compatible_with !== null && row.compatible_with <= known.length) continue;
      throw new Error(
        `the database has migration ${row.id} (${row.name}), which this program does not know: it was written by a newer version` +
          (row.compatible_with === null
            ? ''
            : ` and works with servers that know at least migration ${row.compatible_with}, but this one knows ${known.length}`) +
          '. Start a server of that version or later',
      );
    }
    if (migration.id !== row.id || migration.checksum !== row.checksum) {
      throw new Error(
        `migration ${migration.id} (${migration.name}) is not the one that was applied to this database (${row.id}, ${row.name}): an applied migration must never be edited`,
      );
    }
  }
  if (applied.length > known.length)
    log.info(
      { known: known.length, database: applied.length },
      'the database has a newer schema, which says that this version can run beside it',
    );
}
