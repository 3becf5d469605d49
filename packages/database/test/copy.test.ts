import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Client } from 'pg';
import { emptyDatabase } from '@releap/testing/postgres';
import { copyIn, copyOut } from '../src/backup/copy.ts';

async function connected(): Promise<Client> {
  const client = new Client({ connectionString: await emptyDatabase() });
  client.on('error', () => undefined);
  await client.connect();
  await client.query('create table t (id integer primary key, text text)');
  return client;
}

async function* chunks(...texts: readonly string[]): AsyncGenerator<Buffer> {
  for (const text of texts) yield Buffer.from(text);
}

async function all(rows: AsyncIterable<Uint8Array>): Promise<Uint8Array[]> {
  const found: Uint8Array[] = [];
  for await (const chunk of rows) found.push(chunk);
  return found;
}

const IN = 'copy t from stdin';

test('rows come back as they were written, also in pieces that are no rows, and the connection serves further queries', async () => {
  const client = await connected();
  assert.equal(await copyIn(client, IN, chunks('1\ta\\nb\n2', '\t\\N\n')), 2);
  assert.equal(await copyIn(client, IN, chunks()), 0);
  const { rows } = await client.query('select text from t order by id');
  assert.deepEqual(
    rows.map(({ text }: { text: string | null }) => text),
    ['a\nb', null],
  );
  const written = await all(copyOut(client, 'copy (select * from t order by id) to stdout'));
  assert.equal(Buffer.concat(written).toString(), '1\ta\\nb\n2\t\\N\n');
  assert.deepEqual(await all(copyOut(client, 'copy (select 1 where false) to stdout')), []);
  await client.end();
});

test('what PostgreSQL or the source refuses is the error, and a later query works', async () => {
  const client = await connected();
  await assert.rejects(
    copyIn(client, IN, chunks('1\ta\n', 'x\tb\n', '2\tc\n')),
    /invalid input syntax for type integer: "x"/,
  );
  await assert.rejects(
    copyIn(client, 'copy missing from stdin', chunks('1\n')),
    /relation "missing" does not exist/,
  );
  async function* broken(): AsyncGenerator<Buffer> {
    yield Buffer.from('1\ta\n');
    throw new Error('the file is damaged');
  }
  await assert.rejects(copyIn(client, IN, broken()), /the file is damaged/);
  assert.equal((await client.query('select 1 from t')).rowCount, 0);
  await client.end();
});

test('rows that are not read to their end end the connection; the server has no copy left', async () => {
  const client = await connected();
  for await (const chunk of copyOut(
    client,
    `copy (select repeat('x', 1000) from generate_series(1, 100000)) to stdout`,
  )) {
    assert.ok(chunk.length > 0);
    break;
  }
  await assert.rejects(client.query('select 1'));
  await client.end();
  const refused = await connected();
  await assert.rejects(all(copyOut(refused, 'copy missing to stdout')), /relation "missing" does not exist/);
  await refused.end();
});
