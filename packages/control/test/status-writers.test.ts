/**
 * Statuses change by the transition tables alone. PostgreSQL says which statements write one: those that it refuses to a role that may
 * write all other columns. It also says which tables have statuses.
 */
import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { it } from 'node:test';
import { declaredStatements } from '@releap/database';
import { startWorld } from '@releap/testing/world';
import { MACHINES } from '../scripts/render-lifecycle.ts';
import { assigned } from '../src/platform/lifecycle/sql.ts';

const SOURCE = path.resolve(import.meta.dirname, '../src');

// A server declares the statements of its modules.
const world = await startWorld();

it('every column with statuses has a transition table, which names all of them', async () => {
  const { rows } = await world.database.pool.query<{ column: string; definition: string }>(
    `select c.conrelid::regclass || '.' || a.attname as column, pg_get_constraintdef(c.oid) as definition
       from pg_constraint c join pg_class t on t.oid = c.conrelid and not t.relispartition
       join pg_attribute a on a.attrelid = t.oid and c.conkey = array[a.attnum]
      where c.contype = 'c' and a.attname ~ '(status|state)$'`,
  );
  const stored = rows.map(({ column, definition }) => [
    column,
    new Set([...definition.matchAll(/'(\w+)'/g)].map(([, status]) => status)),
  ]);
  const known = MACHINES.map(({ table, column, transitions }) => [
    `${table}.${column}`,
    new Set(transitions.flatMap(({ from, to }) => (to === 'same' ? from : [...from, to]))),
  ]);
  assert.deepEqual(Object.fromEntries(known), Object.fromEntries(stored));
});

it('no other statement writes a status', async () => {
  const writers = new Set<string>();
  const others = new Set<string>();
  const client = await world.database.pool.connect();
  try {
    // With the transaction the role is gone.
    await client.query('begin');
    for (const machine of MACHINES) {
      const { table, column } = machine;
      const role = `no_status_of_${table}`;
      await client.query(`create role ${role};
        grant all on all tables in schema public to ${role}; grant all on all sequences in schema public to ${role};
        revoke update on ${table} from ${role}`);
      const { rows } = await client.query<{ columns: string }>(
        `select string_agg(attname, ', ') as columns from pg_attribute
          where attrelid = $1::regclass and attnum > 0 and not attisdropped and attname <> $2`,
        [table, column],
      );
      await client.query(`grant update (${rows[0]?.columns ?? ''}) on ${table} to ${role}; savepoint role`);
      await client.query(`set local role ${role}; savepoint explained`);
      for (const [name, text] of declaredStatements) {
        if (!text.includes(table)) continue;
        const refusal = await client.query(`explain (generic_plan) ${text}`).then(
          () => '',
          (error: Error) => error.message,
        );
        if (refusal !== '') await client.query('rollback to explained');
        if (refusal === `permission denied for table ${table}`)
          (text.includes(assigned(machine)) ? writers : others).add(name);
        else assert.equal(refusal, '', name);
      }
      await client.query('rollback to role');
    }
  } finally {
    await client.query('rollback');
    client.release();
  }
  assert.ok(writers.size > 60, `${writers.size} statements`);
  assert.deepEqual([...others], []);
});

it('no text that is not declared as a statement changes a table with statuses', () => {
  const updates = new RegExp(
    `\\.query\\(\\s*(['\`])[^'\`]*update (${MACHINES.map(({ table }) => table).join('|')})\\b`,
  );
  const files = globSync('**/*.ts', { cwd: SOURCE });
  assert.deepEqual(
    files.filter((file) => updates.test(readFileSync(path.join(SOURCE, file), 'utf8'))),
    [],
  );
});
