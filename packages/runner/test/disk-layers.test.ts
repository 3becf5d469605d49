import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { appendFile, mkdir, mkdtemp, open, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import * as fc from 'fast-check';
import { propertyRuns } from '@releap/testing/repetitions';
import { EmptyExt4Store } from '../src/disk/empty-ext4.ts';
import { createEmptyQcow2 } from '../src/disk/qcow2.ts';
import {
  chainPath,
  createChain,
  forkChain,
  growChain,
  LAYERS_KEPT,
  readChain,
} from '../src/disk/disk-chain.ts';
import type { DiskChain } from '../src/disk/disk-chain.ts';
import { dropUnused, compactChain, lowestToMerge, writeCompacted } from '../src/disk/layer-compaction.ts';
import { contentId } from '../src/disk/lineage.ts';
import { DamagedManifestError } from '../src/disk/manifest.ts';
import { DiskFullError } from '../src/disk/check-space.ts';
import { makeDisks } from '../src/disk/vm-disks.ts';
import { diskNodes } from '../src/vmm/qemu/block-nodes.ts';
import type { BlockNode } from '../src/vmm/qemu/command-line.ts';

let dir: string;
before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'releap-disk-'));
});
after(async () => {
  await rm(dir, { recursive: true, force: true });
});

const OWNER = { uid: 1_900_000_001, gid: 1_900_000_001 };

describe('an empty write layer', () => {
  it('is sound, empty and of the right size according to qemu-img, for every size', async () => {
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
      { numRuns: propertyRuns(12) },
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
  it('makes a size once for concurrent calls, sound, sparse, and with the same bytes each time', async () => {
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
    await assert.rejects(store.ensure(0), /invalid disk size 0 MiB/);
    await assert.rejects(store.ensure(0.5), /invalid disk size 0.5 MiB/);
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
    const nodes = diskNodes(disks);
    assert.equal(nodes.root['read-only'], true);
    const filesOf = (node: BlockNode): unknown[] => [
      (node['file'] as BlockNode)['filename'],
      ...(node['backing'] ? filesOf(node['backing'] as BlockNode) : []),
    ];
    assert.deepEqual(filesOf(nodes.scratch), ['/scratch-layer-0.qcow2', '/scratch.base']);
    assert.deepEqual(filesOf(nodes.docker), ['/docker.qcow2', '/docker.base']);
    // Again, as after a crash in the middle.
    await makeDisks(store, jail, OWNER, options);
  });

  it('says so when the host has no space', async () => {
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
  it('is shared by its descendants: lower layers never change again, each disk has its own top', async () => {
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

  it('is merged to few layers that read the same, zeros over something included, and leaves nothing else', async () => {
    const store = new EmptyExt4Store(join(dir, 'cache'));
    let count = 0;
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.array(WRITE, { maxLength: 6 }), { minLength: 2, maxLength: 10 }),
        async (layers) => {
          const folder = join(dir, `long-${count++}`);
          let chain = await createChain(store, folder, 64, 'journal');
          for (const [at, writes] of layers.entries()) {
            if (at > 0) chain = await growChain(chain);
            if (writes.length > 0)
              execFileSync('qemu-io', [...writes.flatMap((write) => ['-c', write]), nested(chain)]);
          }
          const expected = await contentOf(chain);
          const flat = await compactChain(chain);
          assert.ok(flat.layers.length < chain.layers.length && flat.layers.length <= 5);
          assert.equal(contentId(flat), contentId(chain));
          const merged = chainPath(flat, flat.layers.at(-1) ?? '');
          const check = execFileSync('qemu-img', ['check', '--output=json', merged], { encoding: 'utf8' });
          assert.deepEqual(
            Object.entries(JSON.parse(check) as Record<string, unknown>).filter(([name]) =>
              /errors|leaks|corrupt/.test(name),
            ),
            [['check-errors', 0]],
          );
          // Files of a runner that ended during a compaction are removed as well.
          await writeFile(join(folder, 'layer-99.qcow2.partial'), 'half');
          await dropUnused(flat);
          assert.deepEqual(
            (await readdir(folder)).sort(),
            [flat.base.file, 'disk.json', ...flat.layers].sort(),
          );
          assert.deepEqual(await readChain(folder), flat);
          assert.ok((await contentOf(flat)).equals(expected));
          // And again, on top of what was merged.
          const longer = await growChain(await growChain(flat));
          execFileSync('qemu-io', ['-c', 'write -P 7 1M 64k', nested(longer)]);
          const then = await contentOf(longer);
          assert.ok((await contentOf(await compactChain(longer))).equals(then));
        },
      ),
      { numRuns: propertyRuns(5) },
    );
  });

  it('is never rewritten as a whole for little new data, and never keeps many layers', () => {
    const sizes = fc.array(fc.integer({ min: 200_000, max: 1_000_000_000 }), { minLength: 2, maxLength: 96 });
    fc.assert(
      fc.property(sizes, (layers) => {
        const from = lowestToMerge(layers);
        assert.ok(from >= 0 && from <= layers.length - 2 && from <= LAYERS_KEPT / 2);
        const above = layers.slice(from + 1).reduce((sum, size) => sum + size, 0);
        const [lowest = 0] = layers.slice(from);
        assert.ok(lowest <= 2 * above || from === LAYERS_KEPT / 2 || from === layers.length - 2);
      }),
    );
    // A disk of 10 GB, of whose captures each adds 10 MB: what is copied in 1000 captures is a few times what was added.
    const disk = [10_000];
    let copied = 0;
    for (let capture = 0; capture < 1000; capture++) {
      disk.push(10);
      if (disk.length <= LAYERS_KEPT) continue;
      const merged = disk.splice(lowestToMerge(disk)).reduce((sum, size) => sum + size, 0);
      copied += merged;
      disk.push(merged);
    }
    assert.ok(copied < 8 * 10_000 + 2 * 10_000, `${copied} MB were copied`);
  });

  it('whose tables name one cluster repeatedly is not merged', async () => {
    const store = new EmptyExt4Store(join(dir, 'cache'));
    const first = await createChain(store, join(dir, 'swollen'), 64, 'journal');
    execFileSync('qemu-io', ['-c', 'write -P 1 1M 64k', nested(first)]);
    const chain = await growChain(first);
    const file = await open(chainPath(chain, 'layer-0.qcow2'), 'r+');
    const l1 = Buffer.alloc(8);
    await file.read(l1, 0, 8, 3 * 65_536);
    const l2At = Number(l1.readBigUInt64BE(0) & 0xff_ffff_ffffn);
    const table = Buffer.alloc(65_536);
    await file.read(table, 0, table.length, l2At);
    const entry = table.subarray(16 * 8, 17 * 8);
    for (let n = 0; n < 1024; n++) entry.copy(table, n * 8);
    await file.write(table, 0, table.length, l2At);
    await file.close();
    await assert.rejects(compactChain(chain), /two entries refer to one cluster/);
    assert.deepEqual(
      (await readdir(chain.folder)).sort(),
      [chain.base.file, 'disk.json', ...chain.layers].sort(),
    );
  });

  it('with zeros that take space is merged to one where they take none', async () => {
    const store = new EmptyExt4Store(join(dir, 'cache'));
    const first = await createChain(store, join(dir, 'zeros'), 64, 'journal');
    // Written out, as a guest does that writes zeros.
    execFileSync('qemu-io', ['-c', 'write -P 0 8M 8M', '-c', 'write -P 7 9M 64k', nested(first)]);
    const flat = await compactChain(await growChain(first));
    const reads = ['read -P 0 8M 1M', 'read -P 7 9M 64k', 'read -P 0 9500k 1M'];
    const out = execFileSync('qemu-io', ['-r', ...reads.flatMap((read) => ['-c', read]), nested(flat)]);
    assert.doesNotMatch(out.toString(), /verification failed/);
    const { blocks } = await stat(chainPath(flat, flat.layers[0] as string));
    assert.ok(blocks * 512 < 1024 * 1024, `${blocks * 512} bytes`);
  });

  it('that is damaged is not merged, and stays unchanged', async () => {
    const store = new EmptyExt4Store(join(dir, 'cache'));
    const first = await createChain(store, join(dir, 'damaged'), 64, 'journal');
    execFileSync('qemu-io', ['-c', 'write -P 1 1M 64k', nested(first)]);
    const chain = await growChain(first);
    const file = await open(chainPath(chain, 'layer-0.qcow2'), 'r+');
    const l1 = Buffer.alloc(8);
    await file.read(l1, 0, 8, 3 * 65_536);
    // The first entry of the first table: a compressed cluster, which no VMM of ours writes.
    await file.write(
      Buffer.from([0x40, 0, 0, 0, 0, 1, 0, 0]),
      0,
      8,
      Number(l1.readBigUInt64BE(0) & 0xff_ffff_ffffn),
    );
    await file.close();
    await assert.rejects(compactChain(chain), /damaged/);
    assert.deepEqual(await readChain(chain.folder), chain);
    assert.deepEqual(
      (await readdir(chain.folder)).sort(),
      [chain.base.file, 'disk.json', ...chain.layers].sort(),
    );
    const controller = new AbortController();
    controller.abort(new Error('not any more'));
    await assert.rejects(writeCompacted(chain, controller.signal), /not any more/);
  });

  it('is not merged where that would take the last space, in which guests write', async () => {
    const folder = join(dir, 'tight');
    await mkdir(folder);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=300m', 'releap-test', folder]);
    try {
      const store = new EmptyExt4Store(join(dir, 'cache'));
      const first = await createChain(store, folder, 64, 'journal');
      const chain = await growChain(first);
      execFileSync('qemu-io', ['-c', 'write -P 1 1M 40M', nested(chain)]);
      await assert.rejects(compactChain(chain), (error: Error) => error instanceof DiskFullError);
      assert.deepEqual(
        (await readdir(folder)).sort(),
        [chain.base.file, 'disk.json', ...chain.layers].sort(),
      );
    } finally {
      execFileSync('umount', [folder]);
    }
  });

  it('whose manifest is an older one keeps the newer layer that has content, and removes an empty one', async () => {
    const emptyDisks = new EmptyExt4Store(join(dir, 'cache'));
    const chain = await createChain(emptyDisks, join(dir, 'older'), 16, 'journal');
    const newer = await growChain(chain, true);
    const name = newer.layers.at(-1) as string;
    await appendFile(chainPath(newer, name), 'written by the guest');
    const named = await dropUnused(chain);
    const parked = (await readdir(chain.folder)).filter((file) => file.startsWith('parked-'));
    assert.deepEqual(parked, named);
    assert.equal(parked.length, 1);
    assert.match(await readFile(join(chain.folder, parked[0] as string), 'latin1'), /written by the guest$/);
    await growChain(chain, true);
    assert.deepEqual(await dropUnused(chain), []);
    assert.deepEqual(
      (await readdir(chain.folder)).filter((file) => file.endsWith(name)),
      parked,
    );
  });

  it('whose list is damaged is told from one that is not there', async () => {
    await mkdir(join(dir, 'emptied'));
    await writeFile(join(dir, 'emptied', 'disk.json'), '');
    await assert.rejects(readChain(join(dir, 'emptied')), DamagedManifestError);
  });

  it('is no disk until its list is written', async () => {
    assert.equal(await readChain(join(dir, 'nothing')), undefined);
  });
});

/** A guest's operation on its disk, as a command of qemu-io. */
const WRITE = fc
  .record({
    what: fc.constantFrom('write -P 17', 'write -P 200', 'write -z', 'write -z -u', 'discard'),
    at: fc.integer({ min: 0, max: 60 * 16 }),
    length: fc.integer({ min: 1, max: 64 }),
    // Most of what a guest writes is whole blocks of 4 KiB, not whole clusters.
    shift: fc.constantFrom(0, 4096, 65_024),
  })
  .map(
    ({ what, at, length, shift }) => `${what} ${at * 65_536 + shift} ${length * 65_536 - 2 * (shift % 512)}`,
  );

/** All that a guest reads. */
async function contentOf(chain: DiskChain): Promise<Buffer> {
  const raw = join(dir, 'content.raw');
  execFileSync('qemu-img', ['convert', '-O', 'raw', nested(chain, true), raw]);
  return await readFile(raw);
}

/** The graph of a disk, to write to its top, or only to be read. */
function nested(chain: DiskChain, isRead = false): string {
  let below: Record<string, unknown> = {
    driver: 'raw',
    file: { driver: 'file', filename: chainPath(chain, chain.base.file), 'read-only': true },
    'read-only': true,
  };
  chain.layers.forEach((name, at) => {
    const filename = chainPath(chain, name);
    const isTop = !isRead && at === chain.layers.length - 1;
    below = {
      driver: 'qcow2',
      file: isTop ? { driver: 'file', filename } : { driver: 'file', filename, 'read-only': true },
      ...(isTop ? {} : { 'read-only': true }),
      backing: below,
    };
  });
  return `json:${JSON.stringify(below)}`;
}
