import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import * as fc from 'fast-check';
import { EmptyExt4Store } from '../src/disk/empty-ext4.ts';
import { createEmptyQcow2 } from '../src/disk/qcow2.ts';
import { chainPath, createChain, forkChain, growChain, readChain } from '../src/disk/disk-chain.ts';
import type { DiskChain } from '../src/disk/disk-chain.ts';
import { dropUnused, flattenChain } from '../src/disk/flatten.ts';
import { DiskFullError, makeDisks } from '../src/disk/vm-disks.ts';

let dir: string;
before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'releap-disk-'));
});
after(async () => {
  await rm(dir, { recursive: true, force: true });
});

const OWNER = { uid: 1_900_000_001, gid: 1_900_000_001 };

describe('an empty write layer', () => {
  it('is sound, empty and of the right size in the eyes of qemu-img, whatever the size', async () => {
    const size = fc.oneof(
      fc.integer({ min: 1, max: 4096 }),
      fc.integer({ min: 1, max: 64 * 1024 }).map((mib) => mib * 2048),
      fc.constantFrom(1024 * 1024, 512 * 2048 + 1, 10_000_000 * 2048),
    );
    let count = 0;
    await fc.assert(
      fc.asyncProperty(size, async (sectors) => {
        const path = join(dir, `layer-${count++}`);
        await createEmptyQcow2(path, sectors * 512);
        const check = JSON.parse(
          execFileSync('qemu-img', ['check', '--output=json', path], { encoding: 'utf8' }),
        ) as Record<string, number>;
        assert.equal(check['check-errors'], 0);
        assert.equal(check['leaks'] ?? 0, 0);
        assert.equal(check['corruptions'] ?? 0, 0);
        assert.equal(check['allocated-clusters'] ?? 0, 0);
        const info = JSON.parse(
          execFileSync('qemu-img', ['info', '--output=json', path], { encoding: 'utf8' }),
        ) as Record<string, unknown>;
        assert.equal(info['virtual-size'], sectors * 512);
        assert.equal(info['backing-filename'], undefined);
        await rm(path);
      }),
      { numRuns: 12 },
    );
  });

  it('refuses sizes that no disk has, and never overwrites a file', async () => {
    for (const bytes of [0, -512, 511, 1.5, Number.NaN, 2 ** 53]) {
      await assert.rejects(createEmptyQcow2(join(dir, 'never'), bytes), /a disk cannot have/);
    }
    await createEmptyQcow2(join(dir, 'once'), 1024 * 1024);
    await assert.rejects(createEmptyQcow2(join(dir, 'once'), 1024 * 1024), { code: 'EEXIST' });
  });
});

describe('the store of empty file systems', () => {
  it('makes a size once however many ask, sound, sparse, and with the same bytes each time', async () => {
    const digests: string[] = [];
    for (const name of ['one', 'two']) {
      const store = new EmptyExt4Store(join(dir, name));
      const paths = await Promise.all([1, 2, 3].map(async () => await store.ensure(64, 'overlay')));
      assert.equal(new Set(paths).size, 1);
      const path = paths[0] ?? '';
      execFileSync('e2fsck', ['-fn', path], { stdio: 'pipe' });
      const folders = execFileSync('debugfs', ['-R', 'ls -p /', path], { encoding: 'utf8', stdio: 'pipe' });
      assert.match(folders, /\/040755\/0\/0\/upper\//);
      assert.match(folders, /\/040755\/0\/0\/work\//);
      const { size, blocks, mode } = await stat(path);
      assert.equal(size, 64 * 1024 * 1024);
      assert.ok(blocks * 512 < 2 * 1024 * 1024, `${blocks * 512} bytes are allocated`);
      assert.equal(mode & 0o222, 0);
      // The clock must not show.
      await new Promise((resolve) => setTimeout(resolve, 1_050));
      digests.push(
        createHash('sha256')
          .update(await readFile(path))
          .digest('hex'),
      );
    }
    assert.equal(digests[0], digests[1]);
  });

  it('rounds a tiny size up and refuses what is no size', async () => {
    const store = new EmptyExt4Store(join(dir, 'tiny'));
    assert.equal((await stat(await store.ensure(1))).size, 8 * 1024 * 1024);
    await assert.rejects(store.ensure(0), /cannot have 0 MiB/);
    await assert.rejects(store.ensure(0.5), /cannot have 0.5 MiB/);
  });
});

describe('the disks of a VM', () => {
  it('names no file inside of a file, and gives the write layers to the VM alone', async () => {
    const store = new EmptyExt4Store(join(dir, 'cache'));
    const jail = join(dir, 'jail');
    await mkdir(jail);
    const root = await store.ensure(8);
    const scratch = await createChain(store, join(dir, 'chain'), 100, 'overlay');
    const options = { rootImagePath: root, scratch, persistent: false };
    const disks = await makeDisks(store, jail, OWNER, options);
    assert.deepEqual(disks.bytes, { scratch: 100 * 1024 * 1024, docker: 8 * 1024 * 1024 });
    const layer = await stat(join(dir, 'chain', 'layer-0.qcow2'));
    assert.equal(layer.uid, OWNER.uid);
    assert.equal(layer.mode & 0o777, 0o600);
    assert.equal(disks.nodes.root['read-only'], true);
    // Again, as after a crash in the middle.
    await makeDisks(store, jail, OWNER, options);
  });

  it('says so when the host has no room', async () => {
    const small = join(dir, 'small');
    await mkdir(small);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'releap-test', small]);
    try {
      const store = new EmptyExt4Store(join(dir, 'cache'));
      const root = await store.ensure(8);
      const scratch = await createChain(store, join(dir, 'other'), 100, 'overlay');
      await assert.rejects(
        makeDisks(store, small, OWNER, { rootImagePath: root, scratch, persistent: false }),
        (error: Error) => error instanceof DiskFullError && /host's disk .* is full/.test(error.message),
      );
    } finally {
      execFileSync('umount', [small]);
    }
  });
});

describe('a chain of layers', () => {
  it('is shared by what begins with it: those below never change again, each has a top of its own', async () => {
    const store = new EmptyExt4Store(join(dir, 'cache'));
    const source = await createChain(store, join(dir, 'source'), 64, 'journal');
    const child = await forkChain(source, join(dir, 'child'));
    assert.deepEqual(child.layers, ['layer-0.qcow2', 'layer-1.qcow2']);
    assert.deepEqual(await readChain(join(dir, 'child')), child);
    const [first, shared] = await Promise.all(
      ['source', 'child'].map((name) => stat(join(dir, name, 'layer-0.qcow2'))),
    );
    assert.equal(first?.ino, shared?.ino);
    assert.equal(shared?.uid, 0);
    assert.equal((shared?.mode ?? 0) & 0o777, 0o444);
    await rm(join(dir, 'source'), { recursive: true });
    assert.equal((await forkChain(child, join(dir, 'grandchild'))).layers.length, 3);
  });

  it('becomes one layer with the same content, zeros over something included', async () => {
    const store = new EmptyExt4Store(join(dir, 'cache'));
    let chain = await createChain(store, join(dir, 'long'), 64, 'journal');
    const expected = await readFile(chainPath(chain, 'base.ext4'));
    const write = (at: number, byte: number): void => {
      const graph = nested(chain);
      execFileSync('qemu-io', ['-c', `write -P ${byte} ${at} 65536`, graph]);
      expected.fill(byte, at, at + 65_536);
    };
    for (let layer = 0; layer < 10; layer++) {
      write(layer * 1_048_576, layer + 1);
      write(32 * 1_048_576, layer);
      // What the layer below has, and the empty disk's own first blocks, are zero from here on.
      write(Math.max(0, layer - 1) * 1_048_576, 0);
      chain = await growChain(chain);
    }
    const flat = await flattenChain(chain);
    // What a runner has left that ended while it flattened goes as well.
    await writeFile(join(dir, 'long/layer-99.qcow2.partial'), 'half');
    await dropUnused(flat);
    assert.deepEqual((await readdir(join(dir, 'long'))).sort(), ['disk.json', ...flat.layers]);
    assert.deepEqual(await readChain(join(dir, 'long')), flat);
    assert.equal(flat.layers.length, 1);
    assert.equal(flat.base, undefined);
    const raw = join(dir, 'flat.raw');
    execFileSync('qemu-img', ['convert', '-O', 'raw', chainPath(flat, flat.layers[0] ?? ''), raw]);
    assert.ok((await readFile(raw)).equals(expected));
    assert.equal((await forkChain(flat, join(dir, 'of-flat'))).layers.length, 2);
  });

  it('is no disk until its list is written', async () => {
    assert.equal(await readChain(join(dir, 'nothing')), undefined);
  });
});

/** The graph of a disk, to write to its top. */
function nested(chain: DiskChain): string {
  let below: Record<string, unknown> = {
    driver: 'raw',
    file: { driver: 'file', filename: chainPath(chain, chain.base ?? ''), 'read-only': true },
    'read-only': true,
  };
  chain.layers.forEach((name, at) => {
    const filename = chainPath(chain, name);
    const isTop = at === chain.layers.length - 1;
    below = {
      driver: 'qcow2',
      file: isTop ? { driver: 'file', filename } : { driver: 'file', filename, 'read-only': true },
      ...(isTop ? {} : { 'read-only': true }),
      backing: below,
    };
  });
  return `json:${JSON.stringify(below)}`;
}
