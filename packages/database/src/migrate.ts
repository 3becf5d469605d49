import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { Client } from 'pg';
import type { Logger } from 'pino';
import { LOCKS, RELEAP_LOCK_SPACE } from './locks.ts';

export interface Migration {
  id: number;
  name: string;
  sql: string;
  checksum: string;
}

export interface MigrateOptions {
  url: string;
  log: Logger;
  /** Longest to wait for another server that migrates, in milliseconds. */
  lockTimeoutMs?: number;
  /** For tests; the ones of this package when absent. */
  migrations?: Migration[];
}

const FOLDER = new URL('./migrations/', import.meta.url);

/** The migrations of this version, in order. Files are named `NNNN-what.sql`, without gaps from 0001. */
export async function readMigrations(folder: URL = FOLDER): Promise<Migration[]> {
  const files = (await readdir(folder)).filter((file) => file.endsWith('.sql')).sort();
  const migrations: Migration[] = [];
  for (const file of files) {
    const match = /^(\d{4})-([a-z0-9-]+)\.sql$/.exec(file);
    if (match?.[1] === undefined || match[2] === undefined) {
      throw new Error(`migration "${file}" must be named like 0001-what-it-does.sql`);
    }
    const id = Number(match[1]);
    if (id !== migrations.length + 1) {
      throw new Error(
        `migration "${file}" should have the number ${migrations.length + 1}: no gaps, none twice`,
      );
    }
    const sql = await readFile(new URL(file, folder), 'utf8');
    migrations.push({ id, name: match[2], sql, checksum: createHash('sha256').update(sql).digest('hex') });
  }
  return migrations;
}

/**
 * Brings the schema to this version. Servers that start together take turns under an advisory lock; each
 * migration is one transaction, so a crash leaves the schema between two migrations and never inside one.
 * @returns the ids that were applied by this call.
 * @throws when an applied migration has changed since, or when the database is newer than this program.
 */
export async function migrate(options: MigrateOptions): Promise<number[]> {
  const migrations = options.migrations ?? (await readMigrations());
  const client = new Client({
    connectionString: options.url,
    connectionTimeoutMillis: 10_000,
    lock_timeout: options.lockTimeoutMs ?? 120_000,
    application_name: 'releap-migrate',
  });
  client.on('error', (error) => options.log.warn({ err: error }, 'the migration connection broke'));
  await client.connect();
  try {
    // Released when the connection ends, however it ends.
    await client.query('select pg_advisory_lock($1, $2)', [RELEAP_LOCK_SPACE, LOCKS.migrate]);
    await client.query(`create table if not exists schema_migrations (
      id integer primary key, name text not null, checksum text not null, applied_at timestamptz not null default now())`);
    const { rows } = await client.query<{ id: number; name: string; checksum: string }>(
      'select id, name, checksum from schema_migrations order by id',
    );
    checkHistory(rows, migrations);
    const applied: number[] = [];
    for (const migration of migrations.slice(rows.length)) {
      await client.query('begin');
      try {
        await client.query(migration.sql);
        await client.query('insert into schema_migrations (id, name, checksum) values ($1, $2, $3)', [
          migration.id,
          migration.name,
          migration.checksum,
        ]);
        await client.query('commit');
      } catch (error) {
        await client.query('rollback').catch(() => undefined);
        throw new Error(`migration ${migration.id} (${migration.name}) failed: ${(error as Error).message}`, {
          cause: error,
        });
      }
      options.log.info({ migration: migration.id, name: migration.name }, 'migrated the database');
      applied.push(migration.id);
    }
    return applied;
  } finally {
    await client.end();
  }
}

function checkHistory(applied: { id: number; name: string; checksum: string }[], known: Migration[]): void {
  for (const [index, row] of applied.entries()) {
    const migration = known[index];
    if (migration === undefined) {
      throw new Error(
        `the database has migration ${row.id} (${row.name}), which this program does not know: it was written by a newer version`,
      );
    }
    if (migration.id !== row.id || migration.checksum !== row.checksum) {
      throw new Error(
        `migration ${migration.id} (${migration.name}) is not the one that was applied to this database (${row.id}, ${row.name}): an applied migration must never be edited`,
      );
    }
  }
}
