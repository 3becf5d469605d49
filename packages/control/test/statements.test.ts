/** Typed statements say what their rows are; PostgreSQL says whether their SQL is right. */
import 'reflect-metadata';
import assert from 'node:assert/strict';
import { glob } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { declaredStatements } from '@releap/database';
import { openFresh } from '@releap/testing/postgres';

const SOURCES = path.join(import.meta.dirname, '../src');

test('PostgreSQL accepts every declared statement with the schema of this version', async () => {
  for await (const file of glob('**/*.ts', { cwd: SOURCES })) await import(path.join(SOURCES, file));
  assert.ok(declaredStatements.size > 400, `${declaredStatements.size} statements`);
  await using database = await openFresh();
  const client = await database.pool.connect();
  const refused: string[] = [];
  try {
    for (const [name, text] of declaredStatements) {
      await client.query(`prepare "${name}" as ${text}`).catch((error: unknown) => {
        refused.push(`${name}: ${String(error)}`);
      });
    }
  } finally {
    client.release();
  }
  assert.deepEqual(refused, []);
});
