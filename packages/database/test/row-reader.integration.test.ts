import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { openFresh } from '@releap/testing/postgres';
import { createRowReader, statement, type Queryable } from '../src/index.ts';

const READ = statement<{ n: number; id: string; region: string | null }>(
  'test-row-reader',
  `select key.n, found.*
     from jsonb_to_recordset($1::jsonb) as key(n integer, id text, region text)
    cross join lateral (
      select t.id, t.region from (values ('a', 'here'), ('b', 'there')) as t(id, region)
       where t.id = key.id and (key.region is null or t.region = key.region)
    ) found`,
);

interface Key {
  id: string;
  region: string | null;
}

describe('reads of single rows', () => {
  it('that are asked for together share a statement, and each gets its own row or none', async () => {
    await using database = await openFresh();
    const sent: unknown[] = [];
    const counting = {
      query: (...args: [never]) => (sent.push(args), database.pool.query(...args)),
    } as unknown as Queryable;
    const read = createRowReader<Key, { id: string; region: string | null }>(counting, READ);
    const answers = await Promise.all([
      read({ id: 'b', region: null }),
      read({ id: 'a', region: 'there' }),
      read({ id: 'a', region: 'here' }),
      read({ id: 'b', region: null }),
      read({ id: "'; drop table sandboxes; --", region: null }),
    ]);
    assert.deepEqual(
      answers.map((row) => row?.id),
      ['b', undefined, 'a', 'b', undefined],
    );
    assert.equal(sent.length, 1);
  });

  it('are never answered from an earlier one', async () => {
    await using database = await openFresh();
    await database.pool.query('create table shelf (id text, region text)');
    const read = createRowReader<{ id: string }, { id: string }>(
      database.pool,
      statement<{ n: number; id: string }>(
        'test-row-reader-shelf',
        'select key.n, shelf.id from jsonb_to_recordset($1::jsonb) as key(n integer, id text) join shelf using (id)',
      ),
    );
    assert.equal(await read({ id: 'x' }), undefined);
    await database.pool.query(`insert into shelf (id) values ('x')`);
    assert.equal((await read({ id: 'x' }))?.id, 'x');
  });

  it('all fail when their statement fails, and the next ones do not', async () => {
    await using database = await openFresh();
    const read = createRowReader<{ divisor: number }, { quotient: number }>(
      database.pool,
      statement<{ n: number; quotient: number }>(
        'test-row-reader-divide',
        'select key.n, 6 / key.divisor as quotient from jsonb_to_recordset($1::jsonb) as key(n integer, divisor integer)',
      ),
    );
    const failed = await Promise.allSettled([read({ divisor: 0 }), read({ divisor: 2 })]);
    assert.deepEqual(
      failed.map(({ status }) => status),
      ['rejected', 'rejected'],
    );
    assert.equal((await read({ divisor: 2 }))?.quotient, 3);
  });
});
