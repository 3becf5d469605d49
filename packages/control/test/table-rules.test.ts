/**
 * Modules keep to their own tables (table-rules.ts). PostgreSQL says so: it plans each statement for a role that has the privileges of
 * the statement's folder, and refuses what the folder may not do.
 */
import 'reflect-metadata';
import assert from 'node:assert/strict';
import { existsSync, globSync } from 'node:fs';
import path from 'node:path';
import { it } from 'node:test';
import type { PoolClient } from 'pg';
import { directStatements, observeStatements, type DefinedStatement } from './support/statements.ts';
import { mayUse, wingOf } from './support/wings.ts';
import { EXCEPTIONS, INTERFACES, INTERNAL, SHARED, TABLES } from './table-rules.ts';

const SOURCE = path.resolve(import.meta.dirname, '../src');
const observed = observeStatements();
const { startWorld } = await import('@releap/testing/world');

interface Relation {
  name: string;
  /** The table that it is a partition of, or itself. */
  root: string;
  kind: 'table' | 'view';
  columns: [string, ...string[]];
}

const ownerOf = new Map(
  Object.entries(TABLES).flatMap(([folder, tables]) => tables.map((table) => [table, folder] as const)),
);
const folderOf = ({ file }: DefinedStatement): string => path.dirname(file).split('/').slice(0, 2).join('/');

let relations: Relation[];
for (const file of globSync('**/*.ts', { cwd: SOURCE })) await import(path.join(SOURCE, file));
// A server declares the rest.
const world = await startWorld();
const statements = [...observed(), ...directStatements()];
({ rows: relations } = await world.database.pool.query<Relation>(
  `select relname as name, coalesce(pg_partition_root(c.oid), c.oid)::regclass::text as root,
          case relkind when 'v' then 'view' else 'table' end as kind,
          (select array_agg(attname::text order by attnum) from pg_attribute
            where attrelid = c.oid and attnum > 0 and not attisdropped) as columns
     from pg_class c where relnamespace = 'public'::regnamespace and relkind in ('r', 'p', 'v')`,
));
for (const { name, root } of relations) {
  const owner = ownerOf.get(root);
  if (owner !== undefined) ownerOf.set(name, owner);
}
/** The first column of each table and view. */
const keys = new Map(relations.map(({ name, columns: [key] }) => [name, key]));

it('every table has one owner, and so has every view and every function that may write', async () => {
  const named = (wanted: Relation['kind']): string[] =>
    relations
      .filter(({ name, root, kind }) => kind === wanted && name === root)
      .map(({ name }) => name)
      .toSorted();
  assert.deepEqual([...Object.values(TABLES).flat(), ...INTERNAL].toSorted(), named('table'));
  const { rows: functions } = await world.database.pool.query<{ name: string }>(
    `select proname as name from pg_proc
      where pronamespace = 'public'::regnamespace and provolatile = 'v' and prorettype <> 'trigger'::regtype`,
  );
  assert.deepEqual(
    Object.values(INTERFACES).flat().toSorted(),
    [...named('view'), ...functions.map(({ name }) => name)].toSorted(),
  );
  const folders = [...Object.keys(TABLES), ...Object.keys(INTERFACES)];
  assert.deepEqual(
    folders.filter((folder) => !existsSync(path.join(SOURCE, folder))),
    [],
  );
});

it('each statement is of a folder', () => {
  assert.ok(statements.length > 600, `${statements.length} statements`);
  assert.deepEqual(
    statements.filter(({ file }) => !mayUse('functions', wingOf(file))),
    [],
  );
});

it('statements write tables of their own folder, and read no tables of wings above them', async () => {
  const writes = new Map<string, string[]>();
  const reads = new Map<string, string[]>();
  const shared = new Map<string, string[]>();
  await asRole(async (client) => {
    for (const [folder, own] of Map.groupBy(statements, folderOf)) {
      const mayRead = (table: string): boolean => mayUse(wingOf(folder), wingOf(ownerOf.get(table) ?? ''));
      const grants = [...ownerOf].map(([table, owner]) => {
        if (owner === folder) return grantWrite(table);
        return mayRead(table) ? grantRead(table) : '';
      });
      await client.query(`${grants.join('; ')}; savepoint granted`);
      for (const statement of own) {
        const also = new Map<string, 'read' | 'write'>();
        for (;;) {
          const table = await refused(client, statement);
          if (table === undefined) break;
          also.set(table, also.has(table) || mayRead(table) ? 'write' : 'read');
          const more = [...also].map(([one, how]) => (how === 'read' ? grantRead(one) : grantWrite(one)));
          await client.query(more.join('; '));
        }
        for (const [table, how] of also) {
          if (how === 'read') add(reads, statement.name, table);
          else if (SHARED.some((one) => one.table === table)) add(shared, table, folder);
          else add(writes, statement.name, table);
        }
      }
      await client.query('rollback to role');
    }
  });
  assert.deepEqual(sorted(shared), sorted(SHARED.map(({ table, writers }) => [table, writers])));
  assert.deepEqual(sorted(writes), sorted(EXCEPTIONS.flatMap((one) => Object.entries(one.writes ?? {}))));
  assert.deepEqual(sorted(reads), sorted(EXCEPTIONS.flatMap((one) => Object.entries(one.reads ?? {}))));
});

// With the transaction the role is gone.
async function asRole(work: (client: PoolClient) => Promise<void>): Promise<void> {
  const client = await world.database.pool.connect();
  try {
    const views = relations.filter(({ kind }) => kind === 'view').map(({ name }) => grantRead(name));
    await client.query(`begin; create role tested; grant usage on all sequences in schema public to tested;
      ${views.join('; ')}; savepoint role`);
    await work(client);
  } finally {
    await client.query('rollback');
    client.release();
  }
}

/** @returns the table that the statement may not use as it does. Takes back what was granted since the savepoint `granted` */
async function refused(client: PoolClient, { name, text }: DefinedStatement): Promise<string | undefined> {
  await client.query('set local role tested');
  const refusal = await client.query(`explain (generic_plan) ${text}`).then(
    () => '',
    (error: Error) => error.message,
  );
  await client.query('rollback to granted');
  const table = /^permission denied for table (\w+)$/.exec(refusal)?.[1];
  assert.equal(refusal, table === undefined ? '' : `permission denied for table ${table}`, name);
  return table;
}

const grantWrite = (table: string): string => `grant all on ${table} to tested`;
/** To lock rows takes the privilege to update a column: the first one, of the key. */
const grantRead = (table: string): string =>
  `grant select, update (${keys.get(table) ?? ''}) on ${table} to tested`;

function add(all: Map<string, string[]>, key: string, value: string): void {
  const values = all.get(key) ?? [];
  if (!values.includes(value)) all.set(key, [...values, value]);
}

const sorted = (all: Iterable<readonly [string, readonly string[]]>): Record<string, readonly string[]> =>
  Object.fromEntries(
    [...all]
      .map(([key, values]) => [key, values.toSorted()] as const)
      .toSorted(([a], [b]) => (a < b ? -1 : 1)),
  );

it('statements do not update the first column of a table of another folder', async () => {
  await asRole(async (client) => {
    const grants = relations
      .filter(({ kind }) => kind === 'table')
      .map(
        ({ name, columns: [, ...others] }) =>
          `grant select, insert, delete, update (${others.join(', ')}) on ${name} to tested`,
      );
    await client.query(`${grants.join('; ')}; savepoint granted`);
    const found: string[] = [];
    for (const statement of statements) {
      const table = await refused(client, statement);
      if (table !== undefined && ownerOf.get(table) !== folderOf(statement)) found.push(statement.name);
    }
    assert.deepEqual(found, []);
  });
});
