import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Client } from 'pg';
import {
  migrate,
  parseMigration,
  openDatabase,
  readMigrations,
  SANDBOX_COLUMNS,
  FUNCTION_COLUMNS,
  FUNCTION_VERSION_COLUMNS,
  SNAPSHOT_COLUMNS,
  type Migration,
} from '../src/index.ts';
import { emptyDatabase, openFresh, quiet } from '@releap/testing/postgres';

/** The migrations up to this one are older than the rule. */
const NOT_CHECKED = 41;

const one = (sql: string, id = 1): Migration => ({ id, name: `m${id}`, sql, checksum: `sum-${sql}` });

describe('migrations', () => {
  it('bring an empty database to this version, and do nothing the second time', async () => {
    const url = await emptyDatabase();
    const all = (await readMigrations()).map((migration) => migration.id);
    assert.deepEqual(await migrate({ url, log: quiet }), all);
    assert.deepEqual(await migrate({ url, log: quiet }), []);
  });

  it('end the connections of running servers once, after the last one, and only when columns may have changed', async () => {
    const url = await emptyDatabase();
    const first = one('create table t (id integer)');
    await migrate({ url, log: quiet, migrations: [first] });
    const server = new Client({ connectionString: url, application_name: 'releap-control' });
    const ended = new Promise((resolve) => server.on('error', resolve));
    await server.connect();
    const index = one('create index t_id on t (id)', 2);
    await migrate({ url, log: quiet, migrations: [first, index] });
    assert.equal((await server.query('select 1 as one')).rows[0].one, 1);
    const column = one('alter table t add column name text', 3);
    const last = one('create table u (id integer)', 4);
    await migrate({ url, log: quiet, migrations: [first, index, column, last] });
    assert.match(String(await ended), /terminating connection due to administrator command/);
  });

  it('newer ones block no live table: indexes of older tables are made concurrently, and updates are bounded', async () => {
    const refused = (migrations: Migration[]): string[] => {
      const made = new Map<string, number>();
      const problems: string[] = [];
      for (const { id, sql, statements } of migrations) {
        const text = sql.replaceAll(/--.*$/gm, '');
        // The bodies of functions run later.
        const outside = text.replaceAll(/\$(\w*)\$[\s\S]*?\$\1\$/g, "''");
        for (const [, table = ''] of outside.matchAll(/create table (?:if not exists )?(\w+)/gi))
          if (!made.has(table)) made.set(table, id);
        if (id <= NOT_CHECKED) continue;
        for (const [all, concurrently, table = ''] of outside.matchAll(
          /create\s+(?:unique\s+)?index\s+(concurrently\s+)?[\s\S]*?\bon\s+(?:only\s+)?(\w+)/gi,
        ))
          if (made.get(table) !== id && (concurrently === undefined || statements === undefined))
            problems.push(`migration ${id} blocks ${table}: ${all}`);
        for (const [all, table = ''] of outside.matchAll(/^\s*update\s+(\w+)\s[^;]*/gim))
          if (made.get(table) !== id && !/\blimit\b/i.test(all))
            problems.push(`migration ${id} updates all of ${table}: ${all.trim()}`);
      }
      return problems;
    };
    assert.deepEqual(refused(await readMigrations()), []);
    const old = one('create table t (id integer)', NOT_CHECKED);
    const next = (sql: string): string[] => refused([old, parseMigration(NOT_CHECKED + 1, 'next', sql)]);
    assert.equal(next('create index t_id on t (id);').length, 1);
    assert.equal(next('create index concurrently if not exists t_id on t (id);').length, 1);
    assert.equal(next('update t set id = 1;').length, 1);
    assert.deepEqual(
      next('-- transaction: none\ncreate index concurrently if not exists t_id on t (id);'),
      [],
    );
    assert.deepEqual(
      next('create table u (id integer);\ncreate index u_id on u (id);\nupdate u set id = 1;'),
      [],
    );
    assert.deepEqual(next('update t set id = 1 where id in (select id from t limit 1000);'), []);
  });

  it('are applied once when eight servers start at the same time', async () => {
    const url = await emptyDatabase();
    const applied = await Promise.all(Array.from({ length: 8 }, () => migrate({ url, log: quiet })));
    assert.deepEqual(
      applied.flat().sort((a, b) => a - b),
      (await readMigrations()).map((migration) => migration.id),
    );
  });

  it('leave nothing of a migration that fails half way', async () => {
    const url = await emptyDatabase();
    const bad = one('create table half (id integer); select 1 / 0');
    await assert.rejects(
      migrate({ url, log: quiet, migrations: [bad] }),
      /migration 1 \(m1\) failed: division by zero/,
    );
    const client = new Client({ connectionString: url });
    await client.connect();
    const { rows } = await client.query(
      `select to_regclass('half') as half, (select count(*)::int from schema_migrations) as applied`,
    );
    assert.deepEqual(rows, [{ half: null, applied: 0 }]);
    await client.end();
    assert.deepEqual(
      await migrate({ url, log: quiet, migrations: [one('create table half (id integer)')] }),
      [1],
    );
  });

  it('refuse a database whose applied migration was edited since', async () => {
    const url = await emptyDatabase();
    await migrate({ url, log: quiet, migrations: [one('select 1')] });
    await assert.rejects(migrate({ url, log: quiet, migrations: [one('select 2')] }), /must never be edited/);
  });

  it('refuse a database that a newer version wrote', async () => {
    const url = await emptyDatabase();
    await migrate({ url, log: quiet, migrations: [one('select 1'), one('select 2', 2)] });
    await assert.rejects(migrate({ url, log: quiet, migrations: [one('select 1')] }), /newer version/);
  });
});

describe('migrations of another version', () => {
  const run = (url: string, migrations: Migration[]): Promise<number[]> =>
    migrate({ url, log: quiet, migrations });

  it('let an older server start where they say so, and tell it which version is needed where they do not', async () => {
    const url = await emptyDatabase();
    const first = one('select 1');
    const expands = parseMigration(2, 'expands', '-- compatible-with: 1\nselect 2');
    await run(url, [first, expands]);
    assert.deepEqual(await run(url, [first]), []);
    await run(url, [first, expands, parseMigration(3, 'contracts', '-- compatible-with: 2\nselect 3')]);
    assert.deepEqual(await run(url, [first, expands]), []);
    await assert.rejects(
      run(url, [first]),
      /migration 3 \(contracts\), .* works with servers that know at least migration 2, but this one knows 1\. Start a server/,
    );
  });

  it('run outside a transaction where they say so, and repair an index that a cut-off build has left', async () => {
    const url = await emptyDatabase();
    const sql = `-- transaction: none
create table if not exists t (id integer);
-- statement
create unique index concurrently if not exists t_by_id on t (id);
-- statement
insert into t values (7);
`;
    const migration = parseMigration(1, 'alone', sql);
    assert.equal(migration.statements?.length, 3);
    const client = new Client({ connectionString: url });
    await client.connect();
    await client.query('create table t (id integer); insert into t values (1), (1)');
    await assert.rejects(run(url, [migration]), /could not create unique index/);
    const invalid = await client.query('select 1 from pg_index where not indisvalid');
    assert.equal(invalid.rowCount, 1);
    await client.query('delete from t');
    assert.deepEqual(await run(url, [migration]), [1]);
    assert.equal((await client.query('select 1 from pg_index where not indisvalid')).rowCount, 0);
    await client.end();
  });

  it('let live requests through while they wait for a lock, and continue when it is free', async () => {
    const url = await emptyDatabase();
    await run(url, [one('create table busy (id integer)')]);
    const [holder, reader] = [new Client({ connectionString: url }), new Client({ connectionString: url })];
    await Promise.all([holder.connect(), reader.connect()]);
    await holder.query('begin; select * from busy');
    const alter = one('alter table busy add column later integer', 2);
    const work = migrate({
      url,
      log: quiet,
      statementLockMs: 50,
      migrations: [one('create table busy (id integer)'), alter],
    });
    for (let n = 0; n < 5; n++) await reader.query('select * from busy');
    await holder.query('commit');
    assert.deepEqual(await work, [2]);
    await Promise.all([holder.end(), reader.end()]);
  });
});

describe('the column lists', () => {
  it('name columns that the migrations make, and leave out only what is read elsewhere', async () => {
    await using database = await openFresh();
    const made = async (table: string): Promise<string[]> =>
      (
        await database.pool.query<{ column_name: string }>(
          `select column_name::text from information_schema.columns where table_schema = 'public' and table_name = $1`,
          [table],
        )
      ).rows.map((row) => row.column_name);
    const without = (all: string[], listed: readonly string[]): string[] =>
      all.filter((name) => !listed.includes(name)).sort();
    const [sandboxes, snapshots] = [await made('sandboxes'), await made('snapshots')];
    assert.deepEqual(without([...SANDBOX_COLUMNS], sandboxes), ['assigned_to_runner']);
    assert.deepEqual(without([...SNAPSHOT_COLUMNS], snapshots), ['assigned_to_runner']);
    assert.deepEqual(without(await made('functions'), FUNCTION_COLUMNS), []);
    assert.deepEqual(without(await made('function_versions'), FUNCTION_VERSION_COLUMNS), []);
    // `held` is read as `assigned_to_runner`.
    assert.deepEqual(without(sandboxes, SANDBOX_COLUMNS), ['access_token_hash', 'held']);
    assert.deepEqual(without(snapshots, SNAPSHOT_COLUMNS), ['held']);
  });
});

describe('a database', () => {
  it('ends a statement that runs too long', async () => {
    const url = await emptyDatabase();
    await using database = openDatabase({ url, log: quiet, statementTimeoutMs: 100 });
    await assert.rejects(database.pool.query('select pg_sleep(30)'), /statement timeout/);
  });

  it('rolls a transaction back when its work throws, and keeps the connection usable', async () => {
    await using database = await openFresh();
    await assert.rejects(
      database.transaction(async (client) => {
        await client.query(`insert into organizations (id, name) values (gen_random_uuid(), 'x')`);
        throw new Error('no');
      }),
      /^Error: no$/,
    );
    const { rows } = await database.pool.query('select count(*)::int as n from organizations');
    assert.deepEqual(rows, [{ n: 0 }]);
  });

  it('says within its deadline that no server is there', async () => {
    await using database = openDatabase({ url: 'postgres://x@/x?host=/nonexistent-folder', log: quiet });
    await assert.rejects(database.pool.query('select 1'), /ENOENT/);
  });
});

it('a connection that is killed inside a transaction fails the transaction, and nothing else', async () => {
  await using database = await openFresh();
  const work = database.transaction(async (client) => {
    const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
    // Nothing is under way on the connection when it breaks.
    const broken = new Promise((resolve) => client.once('error', resolve));
    await database.pool.query('select pg_terminate_backend($1)', [rows[0]?.pid]);
    await broken;
    await client.query('select 1');
  });
  await assert.rejects(work, /Client has encountered a connection error|Connection terminated|not queryable/);
  assert.equal((await database.pool.query('select 1')).rowCount, 1);
});
