import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import path from 'node:path';
import { it } from 'node:test';
import { promisify } from 'node:util';
import { prepareDatabase, readMigrations } from '@releap/database';
import { until } from '@releap/testing/eventually';
import { emptyDatabase } from '@releap/testing/postgres';
import { programOf } from '@releap/testing/program';
import { pino } from 'pino';

const MAIN = programOf(path.join(import.meta.dirname, '../src/main.ts'));

/** @throws when it exits with another code than 0 */
const migrate = async (databaseUrl: string): Promise<string> => {
  const env = { ...process.env, DATABASE_URL: databaseUrl, RELEAP_LOG_LEVEL: 'warn' };
  return (await promisify(execFile)(process.execPath, [MAIN, 'migrate'], { env })).stdout;
};

it('releap migrate says what it applied; a server that waits for it then starts, and again it has nothing to do', async () => {
  const url = await emptyDatabase();
  const known = await readMigrations();
  const reasons: string[] = [];
  const log = pino({}, { write: (line) => void reasons.push(JSON.parse(line).reason) });
  const waiting = prepareDatabase({ url, log, migrations: 'wait' });
  await until(() => reasons.length > 0);
  assert.deepEqual(reasons, [`migration 1 (${known[0]?.name}) is missing: run "releap migrate"`]);
  const stopped = new AbortController();
  const ended = assert.rejects(
    prepareDatabase({ url, log, migrations: 'wait', signal: stopped.signal }),
    /the process is to end/,
  );
  await until(() => reasons.length > 1);
  stopped.abort(new Error('the process is to end'));
  await ended;

  const upToDate = `the database is up to date: this version knows ${known.length} migrations\n`;
  const applied = known.map(({ id, name }) => `applied migration ${id} (${name})\n`);
  assert.equal(await migrate(url), applied.join('') + upToDate);
  await waiting;
  assert.equal(await migrate(url), upToDate);
});

it('releap migrate without DATABASE_URL, or with one that cannot be read, says so and exits with 2', async () => {
  for (const [url, expected] of [
    ['', /DATABASE_URL is missing/],
    ['postgres://u:secret@h1,,h2/db', /DATABASE_URL=postgres:\/\/u:\*\*\*@h1,,h2\/db: has an empty host/],
  ] as const)
    await assert.rejects(migrate(url), (error: Error & { code: number; stderr: string }) => {
      assert.equal(error.code, 2);
      assert.match(error.stderr, expected);
      return true;
    });
});
