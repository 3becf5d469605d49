/** A PostgreSQL server for tests: real, private, in a temporary folder, without waiting for disks. */
import { mkdtemp, rm, statfs } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { startPostgres } from '@releap/database';
import { Client } from 'pg';
import type { Logger } from 'pino';
import { quiet } from './logging.ts';
import { postgresPrefix, TMPFS } from './postgres-leftovers.ts';

/** Ready copies of the npm binaries are shared by all tests, should they be needed at all. */
export const BINARIES = path.resolve(import.meta.dirname, '../../../build/postgresql');
const TMPFS_MAGIC = 0x01021994;
const TMPFS_BYTES_MIN = 2 * 1024 ** 3;
const TEMPLATE = 'releap_template';

export interface TestPostgres extends AsyncDisposable {
  /** Connection string of a database of this server. */
  url(database: string): string;
  stop(): Promise<void>;
}

export interface TestPostgresOptions {
  /** Fills the template database (migrations); it must close its connections. */
  prepare?: (url: string) => Promise<void>;
  log?: Logger;
}

/** Starts a server in a temporary folder, with a template database if `prepare` is given. */
export async function startTestPostgres(options: TestPostgresOptions = {}): Promise<TestPostgres> {
  const root = await mkdtemp(path.join(await fastFolder(), postgresPrefix()));
  const log = options.log ?? quiet;
  const start = () => startPostgres({ dir: path.join(root, 'postgres'), log, binariesDir: BINARIES });
  const remove = (): Promise<void> => rm(root, { recursive: true, force: true });
  try {
    const first = await start();
    // Many test files share one server. No test asserts what survives a crash of this server, so commits need not wait.
    await execute(first.url('postgres'), 'alter system set max_connections = 400');
    await execute(first.url('postgres'), 'alter system set shared_buffers = "256MB"');
    await execute(first.url('postgres'), 'alter role current_user set synchronous_commit = off');
    if (options.prepare !== undefined) {
      await execute(first.url('postgres'), `create database ${TEMPLATE}`);
      await options.prepare(first.url(TEMPLATE));
    }
    await first.stop();
    const instance = await start();
    const stop = async (): Promise<void> => {
      await instance.stop();
      await remove();
    };
    return { url: (database) => instance.url(database), stop, [Symbol.asyncDispose]: stop };
  } catch (error) {
    await remove();
    throw error;
  }
}

/** A folder in memory where there is one with enough space: creating and dropping databases writes many files. */
export async function fastFolder(): Promise<string> {
  const facts = await statfs(TMPFS).catch(() => undefined);
  const fits = facts?.type === TMPFS_MAGIC && facts.bavail * facts.bsize >= TMPFS_BYTES_MIN;
  return fits ? TMPFS : tmpdir();
}

/** Runs statements, each in a transaction of its own, on the database of a connection string. */
export async function execute(url: string, ...statements: string[]): Promise<void> {
  const client = new Client({ connectionString: url });
  // An error between queries would end the process; the next query reports it.
  client.on('error', () => undefined);
  await client.connect();
  try {
    for (const statement of statements) await client.query(statement);
  } finally {
    await client.end();
  }
}

/** The connection string of another database of the same server. */
function sibling(url: string, database: string): string {
  return url.replace(/^(\w+:\/\/[^/]*\/)[^?]*/, (_, server: string) => server + database);
}

/** Creates a database, with the template's schema unless `empty`. @returns its connection string */
export async function createDatabase(
  maintenanceUrl: string,
  name: string,
  { empty = false } = {},
): Promise<string> {
  // Copied by files: page by page through the log, the default, takes two to three times the processor time.
  const source = empty ? '' : ` template ${TEMPLATE} strategy file_copy`;
  await execute(maintenanceUrl, `create database ${name}${source}`);
  return sibling(maintenanceUrl, name);
}
