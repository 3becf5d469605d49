import assert from 'node:assert/strict';
import { open, readdir, readFile, stat, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { newUuid } from '@releap/contract';
import { until } from '@releap/testing/eventually';
import { temporaryFolder } from '@releap/testing/oci';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { pino } from 'pino';
import { EmptyExt4Store } from '../src/disk/empty-ext4.ts';
import { BuildCaches } from '../src/dockerfile/build-caches.ts';

const DISK_MIB = 16;
const NEVER = new AbortController().signal;
const DAY_MS = 24 * 60 * 60_000;

function cachesIn(folder: string, maxMib = 1024, deleted: readonly string[] = []): BuildCaches {
  const emptyDisks = new EmptyExt4Store(TEST_CACHE);
  const deletedProjects = (): Promise<readonly string[]> => Promise.resolve(deleted);
  const log = pino({ level: 'silent' });
  return new BuildCaches({ folder, emptyDisks, diskMib: DISK_MIB, maxMib, deletedProjects, log });
}

/** What a build writes: not a file system any more, but a disk that can be told from an empty one. */
async function use(caches: BuildCaches, project: string, bytes: number, keep = true): Promise<void> {
  await using disk = await caches.open(project, NEVER);
  // The rest stays sparse.
  await using file = await open(disk.path, 'r+');
  await file.write(Buffer.alloc(bytes, 1), 0, bytes, 0);
  if (keep) disk.keep();
}

test('the next build of a project has what the last one has left, if that has ended in order', async () => {
  await using folder = await temporaryFolder();
  const caches = cachesIn(folder.path);
  const project = newUuid();
  await use(caches, project, 1024);
  {
    await using disk = await caches.open(project, NEVER);
    assert.equal((await readFile(disk.path))[0], 1);
  }
  await using disk = await caches.open(project, NEVER);
  const { size } = await stat(disk.path);
  assert.deepEqual([(await readFile(disk.path))[0], size], [0, DISK_MIB * 2 ** 20]);
  caches.close();
});

test('a build waits for another one of its project, and not for those of other projects', async () => {
  await using folder = await temporaryFolder();
  const caches = cachesIn(folder.path);
  const project = newUuid();
  const first = await caches.open(project, NEVER);
  const order: string[] = [];
  const second = caches.open(project, NEVER).then(async (disk) => {
    order.push('second');
    await disk[Symbol.asyncDispose]();
  });
  const cancelled = new AbortController();
  const third = caches.open(project, cancelled.signal);
  cancelled.abort(new Error('given up'));
  await assert.rejects(third, /given up/);
  await use(caches, newUuid(), 1);
  order.push('first');
  await first[Symbol.asyncDispose]();
  await second;
  assert.deepEqual(order, ['first', 'second']);
  caches.close();
});

test('a cache that fills most of its disk, and one that a crash has left, are not used again', async () => {
  await using folder = await temporaryFolder();
  const caches = cachesIn(folder.path);
  const project = newUuid();
  await use(caches, project, DISK_MIB * 2 ** 20);
  await use(caches, newUuid(), 1);
  await writeFile(join(folder.path, `${newUuid()}.used`), 'left');
  caches.close();
  const later = cachesIn(folder.path);
  await until(async () => (await readdir(folder.path)).every((name) => name.endsWith('.disk')));
  await using disk = await later.open(project, NEVER);
  assert.equal((await readFile(disk.path))[0], 0);
  later.close();
});

test('caches go that no build has used for a week, and the least recently used of too many', async () => {
  await using folder = await temporaryFolder();
  const caches = cachesIn(folder.path, 10);
  const [old, ...others] = [newUuid(), newUuid(), newUuid(), newUuid()];
  const path = (project: string): string => join(folder.path, `${project}.disk`);
  const now = Date.now();
  for (const [at, project] of [old, ...others].entries()) {
    await use(caches, project, 4 * 2 ** 20);
    const used = new Date(now - (project === old ? 8 * DAY_MS : (10 - at) * 60_000));
    await utimes(path(project), used, used);
  }
  await caches.tidy(now);
  const left = others.slice(1).map((project) => `${project}.disk`);
  assert.deepEqual(new Set(await readdir(folder.path)), new Set(left));
  caches.close();
});

test('the cache of a deleted project goes, unless a build has it, and no other one does', async () => {
  await using work = await temporaryFolder();
  const [gone, busy, stays] = [newUuid(), newUuid(), newUuid()];
  const caches = cachesIn(work.path, 1024, [gone, busy, newUuid(), '../escape']);
  try {
    for (const project of [gone, busy, stays]) await use(caches, project, 4096);
    {
      await using _build = await caches.open(busy, NEVER);
      await caches.removeDeleted();
      assert.deepEqual((await readdir(work.path)).sort(), [`${busy}.used`, `${stays}.disk`].sort());
    }
  } finally {
    caches.close();
  }
});
