/**
 * Databases for the tests of a file. `npm test` starts one PostgreSQL for all files and names it in the environment;
 * a file that is run alone starts its own.
 */
import { after } from 'node:test';
import { openDatabase, type Database } from '@releap/database';
import { createDatabase, execute, type TestPostgres } from './postgres-instance.ts';
import { quiet } from './logging.ts';
import { POSTGRES_VARIABLE, startMigratedPostgres } from './postgres-server.ts';

export { quiet };

let own: Promise<TestPostgres> | undefined;
const created: string[] = [];

async function maintenanceUrl(): Promise<string> {
  const shared = process.env[POSTGRES_VARIABLE];
  if (shared !== undefined) return shared;
  own ??= startMigratedPostgres();
  return (await own).url('postgres');
}

/** What uses the databases of this file and must end before they are dropped. */
export const endFirst = new AsyncDisposableStack();

// Registered while the file is loaded, so that it belongs to the file and not to its first test. Hooks run in
// the order in which they were registered, so this one comes before those of the file itself.
after(async () => {
  await endFirst.disposeAsync();
  if (own !== undefined) await (await own).stop();
  else if (created.length > 0) {
    const drops = created.map((name) => `drop database if exists ${name} with (force)`);
    await execute(await maintenanceUrl(), ...drops);
  }
});

async function newDatabase(options: { empty?: boolean }): Promise<string> {
  // The process's id keeps files apart that share a server.
  const name = `test_${process.pid}_${created.length + 1}`;
  created.push(name);
  return await createDatabase(await maintenanceUrl(), name, options);
}

/** The connection string of a new, empty database. */
export function emptyDatabase(): Promise<string> {
  return newDatabase({ empty: true });
}

/** The connection string of a new database with the schema of this version. */
export function freshDatabase(): Promise<string> {
  return newDatabase({});
}

/** The same, opened until the end of the file. */
export async function openFresh(): Promise<Database> {
  return endFirst.use(openDatabase({ url: await freshDatabase(), log: quiet }));
}
