/** Typed statements say what their rows are; PostgreSQL says whether that and their SQL is right. */
import 'reflect-metadata';
import assert from 'node:assert/strict';
import { glob } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { declaredStatements } from '@releap/database';
import { freshDatabase } from '@releap/testing/postgres';
import { Client } from 'pg';
import { DeclaredRows, describeStatement } from './support/row-types.ts';

const PACKAGE = path.join(import.meta.dirname, '..');
const SOURCES = path.join(PACKAGE, 'src');

test('PostgreSQL accepts every declared statement with the schema of this version, and its rows are as declared', async () => {
  for await (const file of glob('**/*.ts', { cwd: SOURCES })) await import(path.join(SOURCES, file));
  assert.ok(declaredStatements.size > 400, `${declaredStatements.size} statements`);
  using rows = new DeclaredRows(path.join(PACKAGE, 'tsconfig.json'));
  assert.ok(rows.size > 300, `${rows.size} declared rows`);
  const client = new Client({ connectionString: await freshDatabase() });
  await client.connect();
  const refused: string[] = [];
  try {
    for (const [name, text] of declaredStatements) {
      const columns = await describeStatement(client, name, text).catch((error: unknown) => {
        refused.push(`${name}: ${String(error)}`);
      });
      if (columns !== undefined) refused.push(...rows.differences(name, columns));
    }
  } finally {
    await client.end();
  }
  assert.deepEqual(refused, []);
});
