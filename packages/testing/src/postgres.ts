/** One real PostgreSQL for the tests of a file: started on first use, a database of its own for every test. */
import { after } from 'node:test';
import { Client } from 'pg';
import { pino, type Logger } from 'pino';
import { migrate, openDatabase, type Database } from '@releap/database';
import { startTestPostgres, type TestPostgres } from './postgres-instance.ts';

export const quiet: Logger = pino({ level: process.env['RELEAP_TEST_LOG'] ?? 'silent' });

let server: Promise<TestPostgres> | undefined;
let counter = 0;

function postgres(): Promise<TestPostgres> {
  server ??= startTestPostgres({
    async prepare(url) {
      await migrate({ url, log: quiet });
    },
  });
  return server;
}

/** What uses the server of this file and must end before it. */
export const endFirst = new AsyncDisposableStack();

// Registered while the file is loaded, so that it belongs to the file and not to its first test. Hooks run in
// the order in which they were registered, so this one comes before those of the file itself.
after(async () => {
  await endFirst.disposeAsync();
  await (await server)?.stop();
});

/** The connection string of a new, empty database. */
export async function emptyDatabase(): Promise<string> {
  const instance = await postgres();
  const name = `empty_${++counter}`;
  const client = new Client({ connectionString: instance.url('postgres') });
  await client.connect();
  try {
    await client.query(`create database ${name}`);
  } finally {
    await client.end();
  }
  return instance.url(name);
}

/** The connection string of a new database with the schema of this version. */
export async function freshDatabase(): Promise<string> {
  return (await postgres()).createDatabase();
}

/** The same, opened. The caller closes it. */
export async function openFresh(): Promise<Database> {
  return openDatabase({ url: await freshDatabase(), log: quiet });
}
