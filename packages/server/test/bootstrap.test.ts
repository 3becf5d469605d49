import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readFile, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { freshDatabase } from '@releap/testing/postgres';
import { pino } from 'pino';
import { writeBootstrap } from '../src/bootstrap.ts';

test('two homes on one database with the same host name and path have a key each, which stays', async () => {
  const folder = await mkdtemp(path.join(tmpdir(), 'releap-bootstrap-'));
  const [mounted, away] = [path.join(folder, 'home'), path.join(folder, 'away')];
  const databaseUrl = await freshDatabase();
  /** As a service starts with its home at the path that both have. */
  const start = async (): Promise<string> => {
    const urls = { baseUrl: 'http://127.0.0.1:1', internalUrl: 'http://127.0.0.1:2', issuer: undefined };
    const log = pino({ level: 'silent' });
    await writeBootstrap({ home: mounted, databaseUrl, ...urls, image: 'debian', log });
    return JSON.parse(await readFile(path.join(mounted, 'bootstrap.json'), 'utf8')).api_key;
  };
  try {
    await mkdir(mounted);
    const first = await start();
    await rename(mounted, away);
    await mkdir(mounted);
    const second = await start();
    assert.notEqual(second, first);
    await rename(mounted, path.join(folder, 'second'));
    await rename(away, mounted);
    assert.equal(await start(), first);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});
