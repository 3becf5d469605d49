import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { link, mkdir, mkdtemp, readdir, readFile, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { LocalCopies } from '../src/disk/local-copies.ts';

let dir: string;
let cache: string;
before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'releap-local-'));
  cache = join(dir, 'cache');
  await mkdir(cache);
});
after(async () => {
  await rm(dir, { recursive: true, force: true });
});

it('a cache on the file system of the VMs needs no copies', async () => {
  const copies = await LocalCopies.open(join(dir, 'near'), cache);
  await writeFile(join(cache, 'image'), 'image');
  assert.equal(copies.isNeeded, false);
  assert.equal(await copies.localPath(join(cache, 'image')), join(cache, 'image'));
  assert.deepEqual([await readdir(join(dir, 'near')), await readdir(cache)], [[], ['image']]);
});

describe('a cache on another file system', () => {
  before(() => {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=16m', 'releap-test', cache]);
  });
  after(() => {
    execFileSync('umount', [cache]);
  });

  it('has each of its images copied once, for concurrent callers and after a restart', async () => {
    const image = join(cache, 'image');
    await writeFile(image, 'image');
    const copies = await LocalCopies.open(join(dir, 'far'), cache);
    assert.equal(copies.isNeeded, true);
    const near = await Promise.all([1, 2, 3].map(() => copies.localPath(image)));
    assert.equal(new Set(near).size, 1);
    const [copy = ''] = near;
    assert.equal(await readFile(copy, 'utf8'), 'image');
    // As a VM does.
    await link(copy, join(dir, 'jail'));
    const { ino } = await stat(copy);
    const restarted = await LocalCopies.open(join(dir, 'far'), cache);
    assert.equal((await stat(await restarted.localPath(image))).ino, ino);
    // What lies elsewhere is left alone.
    assert.equal(await copies.localPath(join(dir, 'jail')), join(dir, 'jail'));

    await rm(image);
    await writeFile(image, 'another image');
    const other = await copies.localPath(image);
    assert.equal(await readFile(other, 'utf8'), 'another image');

    // Copies go when nothing has a link to them and they were not used for long.
    const long = new Date(Date.now() - 48 * 60 * 60_000);
    for (const path of [copy, other]) await utimes(path, long, long);
    await LocalCopies.open(join(dir, 'far'), cache);
    assert.deepEqual(
      (await readdir(join(dir, 'far'))).map((name) => join(dir, 'far', name)),
      [copy],
    );
  });
});
