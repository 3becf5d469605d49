/** For the tests of any package: a real PostgreSQL that is gone afterwards. Not part of the service. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Client } from 'pg';
import { pino, type Logger } from 'pino';
import { startPostgres } from '@releap/database';

/** Ready copies of the npm binaries are shared by all tests, should they be needed at all. */
const BINARIES = path.resolve(import.meta.dirname, '../../../build/postgresql');

export interface TestPostgres extends AsyncDisposable {
  url(database: string): string;
  /** A database of its own, copied from the prepared template in some tens of milliseconds; its connection string. */
  createDatabase(): Promise<string>;
  stop(): Promise<void>;
}

/**
 * Starts an instance in a temporary folder.
 * @param options.prepare fills the template (migrations), once; it must close its connections
 */
export async function startTestPostgres(
  options: { prepare?: (url: string) => Promise<void>; log?: Logger } = {},
): Promise<TestPostgres> {
  const root = await mkdtemp(path.join(tmpdir(), 'releap-pg-'));
  const remove = (): Promise<void> => rm(root, { recursive: true, force: true });
  const log = options.log ?? pino({ level: process.env['RELEAP_TEST_LOG'] ?? 'silent' });
  const instance = await startPostgres({
    dir: path.join(root, 'postgres'),
    log,
    binariesDir: BINARIES,
  }).catch(async (error: unknown) => {
    await remove();
    throw error;
  });
  const execute = async (sql: string): Promise<void> => {
    const client = new Client({ ...instance.connection, database: 'postgres' });
    client.on('error', () => undefined);
    await client.connect();
    try {
      await client.query(sql);
    } finally {
      await client.end();
    }
  };
  let counter = 0;
  let prepared: Promise<void> | undefined;
  const stop = async (): Promise<void> => {
    await instance.stop();
    await remove();
  };
  return {
    url: (database) => instance.url(database),
    async createDatabase() {
      prepared ??= execute('create database prepared').then(() =>
        options.prepare?.(instance.url('prepared')),
      );
      await prepared;
      const name = `test_${++counter}`;
      await execute(`create database ${name} template prepared`);
      return instance.url(name);
    },
    stop,
    [Symbol.asyncDispose]: stop,
  };
}
