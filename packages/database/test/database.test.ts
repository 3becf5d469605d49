import assert from 'node:assert/strict';
import { test } from 'node:test';
import { freshDatabase, openFresh, quiet } from '@releap/testing/postgres';
import { execute } from '@releap/testing/postgres-instance';
import { isDatabaseUnavailable, openDatabase } from '../src/index.ts';

test('a connection that the server ends as it is handed out ends the one statement, and not the process', async () => {
  await using database = await openFresh();
  const ended = new Error('terminating connection due to administrator command');
  await new Promise<void>((resolve, reject) =>
    database.pool.connect((error, client, release) => {
      if (error !== undefined || client === undefined) return reject(error ?? new Error('no client'));
      // As pg does when both are in one packet: whoever awaits the connection has not continued yet.
      try {
        client.emit('error', ended);
        resolve();
      } catch (thrown) {
        reject(thrown);
      } finally {
        release(true);
      }
    }),
  );
  await assert.rejects(
    database.transaction((on) => on.query('select pg_terminate_backend(pg_backend_pid())')),
  );
  const { rows } = await database.transaction((on) => on.query<{ one: number }>('select 1 as one'));
  assert.deepEqual(rows, [{ one: 1 }]);
});

test('of several hosts one that accepts writes is used, and while none does, statements fail with the reasons', async () => {
  const one = await freshDatabase();
  const name = /\/(\w+)\?/.exec(one)?.[1];
  const url = one.replace('host=', 'host=%2Fnonexistent,');
  await using database = openDatabase({ url, log: quiet, connections: 2 });
  /** Ends the sessions, and makes new ones read-only or not. */
  const become = (readOnly: 'on' | 'off'): Promise<void> =>
    execute(
      one,
      'set default_transaction_read_only = off',
      `alter database ${name} set default_transaction_read_only = ${readOnly}`,
      `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`,
    );
  const use = (): Promise<unknown> => database.transaction((on) => on.query('select 1'));
  await use();
  await become('on');
  // Each fails: with the connection that has ended, at the host that was known, and then at all.
  const refusals: string[] = [];
  while (!refusals.some((message) => message.includes('nonexistent'))) {
    const error = await use().then(
      () => assert.fail('it was answered'),
      (thrown: Error) => thrown,
    );
    assert.ok(isDatabaseUnavailable(error), error.message);
    refusals.push(error.message);
  }
  assert.match(
    refusals.at(-1) ?? '',
    /^no host of DATABASE_URL accepts writes: \/nonexistent:5432: .*ENOENT.*; .*: is read-only, as a standby is$/,
  );
  await become('off');
  await use();
});

test('a connection that has become read-only is not used again', async () => {
  await using database = await openFresh();
  const client = await database.pool.connect();
  await client.query('set default_transaction_read_only = on');
  client.release();
  const write = (): Promise<unknown> => database.transaction((on) => on.query('create table t (id integer)'));
  await assert.rejects(write(), isDatabaseUnavailable);
  await write();
});
