/** Images after a crash, garbage collection, damage. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import { link, readdir, rm, stat, utimes, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { assertTidy } from '../support/test-store.ts';
import { tarOf, writeOciLayout } from '@releap/testing/oci';
import { programOf } from '@releap/testing/program';
import {
  scratch,
  registry,
  newCacheDir,
  openStore,
  push,
  from,
  archives,
} from '../support/image-store-world.ts';

test('a process killed in the middle leaves nothing visible, and the next one starts afresh', async () => {
  const layout = path.join(scratch.path, 'big-layout');
  const tars = [];
  for (let i = 0; i < 4; i += 1) {
    tars.push(await tarOf([{ name: `file-${i}`, content: Buffer.alloc(8 << 20, String(i)) }]));
  }
  await writeOciLayout(layout, tars);
  registry.push(layout, 'big:1');
  const cacheDir = newCacheDir();
  const script = programOf(fileURLToPath(new URL('../support/image-ensure.ts', import.meta.url)));
  for (const phase of ['pull', 'unpack', 'write', 'publish']) {
    const child = spawn(process.execPath, [script, cacheDir, `${registry.host}/big:1`], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const killed = new Promise<void>((resolve) => child.once('close', () => resolve()));
    for await (const chunk of child.stdout) {
      if (String(chunk).includes(phase)) child.kill('SIGKILL');
    }
    await killed;
    await using store = openStore(cacheDir);
    // Child processes of the dead one end by themselves before its work is removed.
    for (let left = 600; left > 0; left -= 1) {
      await store.start();
      if ((await readdir(path.join(store.images, 'staging'))).length === 0) break;
      await sleep(100);
      await using again = openStore(cacheDir);
      await again.start();
    }
    await assertTidy(store);
    for (const name of (await readdir(store.images)).filter((entry) => entry.startsWith('sha256-'))) {
      const digest = name.replace('-', ':');
      assert.ok(await store.find(digest), `${phase}: a visible image is whole`);
      await store.remove(digest);
    }
    assert.deepEqual(await descendantsUsing(cacheDir), []);
  }
  await using store = openStore(cacheDir);
  assert.equal((await store.ensure(from(`${registry.host}/big:1`))).layerCount, 4);
});

/** Processes other than this one that name the folder in their arguments, or have a part of it in their root. */
async function descendantsUsing(dir: string): Promise<string[]> {
  // A mount names its source by the path in its file system.
  const source = dir.split('/').slice(-2).join('/');
  for (let left = 600; ; left -= 1) {
    const found = readdirSync('/proc')
      .filter((pid) => /^[0-9]+$/.test(pid) && Number(pid) !== process.pid)
      .flatMap((pid) => {
        try {
          const text = readFileSync(`/proc/${pid}/cmdline`, 'utf8');
          const mounts = readFileSync(`/proc/${pid}/mountinfo`, 'utf8');
          return text.includes(dir) || mounts.includes(source) ? [text.replaceAll('\0', ' ')] : [];
        } catch {
          return [];
        }
      });
    if (found.length === 0 || left === 0) return found;
    await sleep(100);
  }
}

test('garbage collection removes the least recently used images and none that is in use', async () => {
  await using made = openStore();
  const images = [];
  for (const name of ['leased', 'recent', 'linked', 'old']) {
    images.push(await made.ensure(from((await push(`gc-${name}:1`, { name })).ref)));
  }
  // One that has made none: the collection that follows each image in the background would see what is prepared here half done.
  await using store = openStore(path.dirname(made.images), { cacheBytes: 1, layerBytes: 1 });
  const [leased, recent, linked, old] = images;
  assert.ok(leased && recent && linked && old);
  const longAgo = new Date(Date.now() - 24 * 3600_000);
  for (const image of [leased, linked, old]) {
    await utimes(path.join(path.dirname(image.path), 'used'), longAgo, longAgo);
  }
  await link(linked.path, path.join(scratch.path, 'jail-link'));
  const lease = store.lease(leased.digest);
  assert.ok((await store.gc()) > 0);
  assert.deepEqual(
    (await readdir(store.images)).filter((name) => name.startsWith('sha256-')).sort(),
    [leased, recent, linked].map(({ digest }) => digest.replace(':', '-')).sort(),
  );
  assert.deepEqual(await archives(store), []);
  assert.equal(await store.remove(leased.digest), false);
  lease.release();
  lease.release();
  assert.equal(await store.remove(leased.digest), true);
  assert.equal(await store.find(leased.digest), undefined);
  assert.equal(await store.find(old.digest), undefined);
});

test('an image whose files were damaged on disk is made again', async () => {
  await using store = openStore();
  const { ref, digest } = await push('damaged:1', { a: 'a' });
  const image = await store.ensure(from(ref));
  await rm(image.path);
  await writeFile(image.path, 'short');
  await using later = openStore(path.dirname(store.images));
  assert.equal((await later.ensure(from(ref))).digest, digest);
  assert.equal((await stat(image.path)).size, image.sizeBytes);
});
