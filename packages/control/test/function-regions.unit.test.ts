import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Database } from '@releap/database';
import { FunctionRegions } from '../src/functions/ingress/function-regions.ts';
import { createRegions } from '../src/fleet/regions/regions.ts';

/** A database whose answers the test gives. */
function scripted() {
  const queries: PromiseWithResolvers<{ rows: object[] }>[] = [];
  const pool = {
    query: () => {
      const query = Promise.withResolvers<{ rows: object[] }>();
      queries.push(query);
      return query.promise;
    },
  };
  return { queries, database: { pool } as unknown as Database };
}

test('concurrent calls of a function share one query, later ones need none', async () => {
  const { queries, database } = scripted();
  const regions = new FunctionRegions(database);
  const calls = Array.from({ length: 100 }, () => regions.find('p', 'hello'));
  assert.equal(queries.length, 1);
  queries[0]?.resolve({ rows: [{ region: 'here' }] });
  assert.deepEqual(new Set(await Promise.all(calls)), new Set(['here']));
  assert.equal(await regions.find('p', 'hello'), 'here');
  assert.equal(queries.length, 1);
  const other = regions.find('p', 'other');
  queries[1]?.resolve({ rows: [] });
  assert.equal(await other, null);
});

test('a query that fails is not kept', async () => {
  const { queries, database } = scripted();
  const regions = new FunctionRegions(database);
  const failed = regions.find('p', 'hello');
  queries[0]?.reject(new Error('no database'));
  await assert.rejects(failed, /no database/);
  const next = regions.find('p', 'hello');
  queries[1]?.resolve({ rows: [{ region: 'here' }] });
  assert.equal(await next, 'here');
});

test('what calls know of regions is read once for all, and used while the database does not answer', async (t) => {
  let now = 0;
  t.mock.method(performance, 'now', () => now);
  const { queries, database } = scripted();
  const regions = createRegions(database);
  const calls = Array.from({ length: 100 }, () => regions.recent());
  assert.equal(queries.length, 1);
  // Functions of a disabled one continue.
  const row = { id: 'here', enabled: false };
  queries[0]?.resolve({ rows: [row] });
  for (const rows of await Promise.all(calls)) assert.deepEqual(rows, [row]);
  now = 30_000;
  assert.deepEqual(await regions.recent(), [row], 'it does not wait');
  assert.deepEqual(await regions.recent(), [row]);
  assert.equal(queries.length, 2, 'one refreshes it');
  queries[1]?.reject(new Error('no database'));
  await new Promise(setImmediate);
  now = 3_600_000;
  const old = regions.recent();
  queries[2]?.reject(new Error('no database'));
  assert.deepEqual(await old, [row]);
});
