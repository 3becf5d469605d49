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

test('the statements of a batch are committed together', async () => {
  await using database = await openFresh();
  const { pool } = database;
  await pool.query('create table t (id integer primary key)');
  const [first, second] = await database.batch((on) => [
    on.query<{ id: number }>('insert into t values (1) returning id'),
    on.query<{ n: string }>({
      name: 'batch-count',
      text: 'select count(*) as n from t where id < $1',
      values: [9],
    }),
  ]);
  assert.deepEqual([first.rows, second.rows], [[{ id: 1 }], [{ n: '1' }]]);
  assert.equal((await pool.query('select 1 from t')).rowCount, 1);
});

test('a batch is rolled back when one of its statements fails, with the error of that one, and its connection is used again', async () => {
  await using database = openDatabase({ url: await freshDatabase(), log: quiet, connections: 1 });
  const { pool } = database;
  await pool.query('create table t (id integer primary key)');
  const pid = async (): Promise<unknown> => (await pool.query('select pg_backend_pid()')).rows;
  const before = await pid();
  const count = {
    name: 'batch-count-later',
    text: 'select count(*)::integer as n from t where id < $1',
    values: [9],
  };
  await assert.rejects(
    database.batch((on) => [
      on.query('insert into t values (1)'),
      on.query('insert into t values (1)'),
      on.query(count),
    ]),
    { code: '23505' },
  );
  assert.deepEqual(await pid(), before);
  // Also a named statement that was sent with the others, and not prepared.
  assert.deepEqual((await pool.query(count)).rows, [{ n: 0 }]);
});

test('a batch that unlocks before its flush is durable when it has ended', async () => {
  await using database = openDatabase({ url: await freshDatabase(), log: quiet, connections: 1 });
  const { pool } = database;
  await pool.query('create table t (id integer)');
  // Off for the role of tests.
  await pool.query('set synchronous_commit = on');
  for (let n = 0; n < 100; n++) {
    const [, setting, written] = await database.batch(
      (on) => [
        on.query('insert into t values (1)'),
        on.query<{ synchronous_commit: string }>('show synchronous_commit'),
        on.query<{ at: string }>('select pg_current_wal_insert_lsn() as at'),
      ],
      { unlocksBeforeFlush: true },
    );
    assert.deepEqual(setting.rows, [{ synchronous_commit: 'off' }]);
    const { rows } = await pool.query('select pg_current_wal_flush_lsn() >= $1::pg_lsn as durable', [
      written.rows[0]?.at,
    ]);
    assert.deepEqual(rows, [{ durable: true }]);
  }
  assert.equal((await pool.query('select 1 from t')).rowCount, 100);
  assert.deepEqual((await pool.query('show synchronous_commit')).rows, [{ synchronous_commit: 'on' }]);
});

test('a batch that unlocks before its flush is rolled back when one of its statements fails', async () => {
  await using database = await openFresh();
  await database.pool.query('create table t (id integer primary key)');
  await assert.rejects(
    database.batch((on) => [on.query('insert into t values (1)'), on.query('insert into t values (1)')], {
      unlocksBeforeFlush: true,
    }),
    { code: '23505' },
  );
  assert.equal((await database.pool.query('select 1 from t')).rowCount, 0);
});

test('a statement that is sent after its batch is refused', async () => {
  await using database = await openFresh();
  await assert.rejects(
    database.batch((on) => [on.query('select 1').then(() => on.query('create table t (id integer)'))]),
    /not sent together/,
  );
  await assert.rejects(database.pool.query('select 1 from t'), { code: '42P01' });
});

test('a batch whose connection breaks fails, and the next one has another connection', async () => {
  await using database = openDatabase({ url: await freshDatabase(), log: quiet, connections: 1 });
  await database.pool.query('create table t (id integer)');
  await assert.rejects(
    database.batch((on) => [
      on.query('insert into t values (1)'),
      on.query('select pg_terminate_backend(pg_backend_pid())'),
      on.query('insert into t values (2)'),
    ]),
  );
  const [rows] = await database.batch((on) => [on.query('select 1 from t')]);
  assert.equal(rows.rowCount, 0);
});
