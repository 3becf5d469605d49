import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { ImageFolder } from '../src/image/image-folder.ts';

/** What the locks are called that are held for work on a key. */
async function lockOf(folder: ImageFolder): Promise<string> {
  await using work = await folder.work('image', new AbortController().signal);
  return path.basename(work.path).split('.')[0] ?? '';
}

test('processes that prepare a folder at the same time have the same locks', async () => {
  for (let round = 0; round < 10; round++) {
    const dir = await mkdtemp(path.join(tmpdir(), 'releap-folder-'));
    const folders = Array.from({ length: 4 }, () => new ImageFolder(dir));
    await Promise.all(folders.map(async (folder) => await folder.prepare()));
    const locks = new Set<string>();
    for (const folder of folders) locks.add(await lockOf(folder));
    assert.equal(locks.size, 1, `round ${round}`);
    await rm(dir, { recursive: true });
  }
});
