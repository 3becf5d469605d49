import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { appendFile, mkdir, mkdtemp, open, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { pino } from 'pino';
import {
  chainPath,
  createChain,
  forkChain,
  growChain,
  readChain,
  saveChain,
  shareChain,
} from '../src/disk/disk-chain.ts';
import type { DiskChain } from '../src/disk/disk-chain.ts';
import { EmptyExt4Store } from '../src/disk/empty-ext4.ts';
import { compactChain } from '../src/disk/layer-compaction.ts';
import { isChildOf } from '../src/disk/lineage.ts';
import type { DiskManifest } from '../src/disk/manifest.ts';
import { Digests } from '../src/machine/digests.ts';
import { describeMemory, SnapshotFolders } from '../src/machine/snapshot-folder.ts';
import { VmFolders } from '../src/machine/vm-folder.ts';
import { DEVICE_MODEL } from '../src/vmm/qemu/device-model.ts';
import { driverWith } from './support/driver.ts';

const RLP = fileURLToPath(new URL('../../cli/bin/rlp', import.meta.url));
const VM = 'stopped';
const SNAPSHOT = '11111111-2222-4333-8444-555555555555';

let dir: string;
let store: EmptyExt4Store;
before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'releap-identity-'));
  store = new EmptyExt4Store(join(dir, 'cache'));
});
after(async () => {
  await rm(dir, { recursive: true, force: true });
});

const manifestOf = async (folder: string): Promise<DiskManifest> =>
  JSON.parse(await readFile(join(folder, 'disk.json'), 'utf8')) as DiskManifest;
const idsOf = async (folder: string): Promise<string[]> =>
  (await manifestOf(folder)).layers.map(({ id }) => id);
const sha256 = async (path: string): Promise<string> =>
  createHash('sha256')
    .update(await readFile(path))
    .digest('hex');

describe('the identity of a layer', () => {
  it('is unique, the same in all disks that share the layer, and not that of the layer that it is merged into', async () => {
    const source = await createChain(store, join(dir, 'source'), 64, 'journal');
    const { base, layers } = await manifestOf(source.folder);
    assert.deepEqual(base, { kind: 'journal', version: 1, bytes: 64 * 2 ** 20, file: 'base.ext4' });
    assert.deepEqual([layers[0]?.file, layers[0]?.bytes, layers[0]?.sha256], ['layer-0.qcow2', null, null]);

    const [one, two] = await Promise.all([
      forkChain(source, join(dir, 'one')),
      forkChain(source, join(dir, 'two')),
    ]);
    const ids = [...(await idsOf(one.folder)), ...(await idsOf(two.folder))];
    // Both tops have one name, and are two layers.
    assert.deepEqual(one.layers, two.layers);
    assert.equal(new Set(ids).size, 3);
    assert.equal(ids[0], layers[0]?.id);

    const long = await growChain(await growChain(one));
    const flat = await compactChain(long);
    const [merged] = (await manifestOf(flat.folder)).layers;
    assert.equal(merged?.through, long.identities[long.layers.at(-1) ?? '']?.id);
    assert.ok(!(await idsOf(two.folder)).includes(merged?.id ?? ''));
  });

  it('tells a child from a disk whose layers only have the same names', async () => {
    const parent = await createChain(store, join(dir, 'parent'), 64, 'journal');
    const child = await forkChain(parent, join(dir, 'child'));
    const stranger = await createChain(store, join(dir, 'stranger'), 64, 'journal');
    assert.ok(isChildOf(child, parent));
    assert.ok(!isChildOf(parent, child));
    assert.ok(!isChildOf(await forkChain(stranger, join(dir, 'of-stranger')), parent));
    const grown = await growChain(child);
    assert.ok(!isChildOf(grown, parent));
    assert.ok(isChildOf(await growChain(await compactChain(grown)), grown), 'however few layers it was made');
  });
});

describe('a disk', () => {
  it('of a later version is refused, and not treated as missing', async () => {
    const folder = join(dir, 'later');
    await mkdir(folder);
    await writeFile(join(folder, 'disk.json'), '{"version":3,"disks":[]}');
    await assert.rejects(readChain(folder), /later version of Releap/);
  });
});

describe('digests', () => {
  const FACTS = {
    vmId: VM,
    manifest: 'sha256:0',
    image: {} as never,
    noChanges: false,
    diskBytes: 1,
    scratchBytes: 1,
  };

  /** Folders as they lie in the home `name` of a service. */
  async function host(name: string) {
    const folders = new VmFolders(join(dir, name, 'runner/vms'));
    const snapshots = new SnapshotFolders(join(dir, name, 'runner/snapshots'));
    const digests = new Digests({ folders, snapshots, log: pino({ level: 'silent' }) });
    const chain = await growChain(await createChain(store, folders.keep(VM), 64, 'journal'));
    await appendFile(chainPath(chain, 'layer-0.qcow2'), 'written by a guest');
    return { folders, snapshots, digests, chain };
  }

  it('are computed for immutable files, and only for those', async () => {
    const { folders, snapshots, digests, chain } = await host('found');
    await shareChain({ ...chain, layers: chain.layers.slice(0, 1) }, await snapshots.begin(SNAPSHOT)).then(
      (shared) => saveChain(shared),
    );
    await snapshots.complete(SNAPSHOT, { ...FACTS, kind: 'disk' });
    await digests.sweep();
    const path = chainPath(chain, 'layer-0.qcow2');
    const digest = { bytes: (await stat(path)).size, sha256: await sha256(path) };
    const of = async (folder: string) =>
      (await manifestOf(folder)).layers.map(({ bytes, sha256 }) => ({ bytes, sha256 }));
    assert.deepEqual(await of(folders.keep(VM)), [digest, { bytes: null, sha256: null }]);
    assert.deepEqual(await of(snapshots.path(SNAPSHOT)), [digest]);
    // And both continue with the layer.
    const child = await forkChain(
      (await readChain(snapshots.path(SNAPSHOT))) as DiskChain,
      join(dir, 'heir'),
    );
    assert.deepEqual((await of(child.folder))[0], digest);
  });

  it('are not computed below a VM that may write there', async () => {
    const { folders, digests, chain } = await host('running');
    await writeFile(join(folders.path(VM), 'vm.json'), '{}');
    await digests.sweep();
    assert.deepEqual(
      (await manifestOf(chain.folder)).layers.map(({ sha256 }) => sha256),
      [null, null],
    );
  });

  it('of the memory of a full snapshot are written with its restore data', async () => {
    const { snapshots, digests, chain } = await host('full');
    const folder = await snapshots.begin(SNAPSHOT);
    await saveChain(await shareChain(chain, folder));
    await writeFile(join(folder, 'memory'), 'memory');
    await writeFile(join(folder, 'state'), 'state');
    const suspension = { deviceModel: DEVICE_MODEL, cpuModel: 'max', vmm: '10.0.2' };
    await writeFile(join(folder, 'paused.json'), JSON.stringify(suspension));
    const memory = {
      shape: { vcpus: 1, memMib: 1 },
      vmm: '10.0.2',
      hostCpu: 'x',
      accelerator: 'tcg' as const,
      ...(await describeMemory(folder, driverWith('10.0.2'))),
    };
    await snapshots.complete(SNAPSHOT, { ...FACTS, kind: 'full', memory });
    const before = (await snapshots.load(SNAPSHOT))?.memory;
    assert.deepEqual(before?.requires, { ...suspension, machineType: 'microvm' });
    await digests.sweep();
    const after = (await snapshots.load(SNAPSHOT))?.memory;
    const path = (name: string) => join(snapshots.path(SNAPSHOT), name);
    assert.deepEqual(after?.objects, {
      memory: { id: before?.objects.memory.id, bytes: 6, sha256: await sha256(path('memory')) },
      state: { id: before?.objects.state.id, bytes: 5, sha256: await sha256(path('state')) },
    });
    assert.equal(after?.vmm, '10.0.2');
  });

  it('never undo a change to a disk while they are computed', async () => {
    const { folders, digests, chain } = await host('busy');
    let now = chain;
    const sweeps: Promise<void>[] = [];
    for (let layer = 0; layer < 40; layer++) {
      sweeps.push(digests.sweep());
      now = await growChain(now);
    }
    await Promise.all(sweeps);
    await digests.sweep();
    const manifest = await manifestOf(folders.keep(VM));
    assert.deepEqual(
      manifest.layers.map(({ file }) => file),
      now.layers,
    );
    assert.equal(manifest.layers.filter(({ sha256 }) => sha256 === null).length, 1);
  });

  it('show one byte that has changed since, to `rlp doctor --verify-disks`', async () => {
    const { digests, chain } = await host('flipped');
    const doctor = async () => {
      const args = ['doctor', '--no-trial', '--verify-disks', '--json'];
      const env = { ...process.env, RELEAP_HOME: join(dir, 'flipped') };
      const stdout = await new Promise<string>((resolve) => {
        execFile(RLP, args, { env }, (_error, text) => resolve(text));
      });
      const { checks } = JSON.parse(stdout) as { checks: { id: string; status: string; detail: string }[] };
      return checks.find(({ id }) => id === 'digests');
    };
    assert.match((await doctor())?.detail ?? '', /2 have no digest yet/);
    await digests.sweep();
    assert.deepEqual([(await doctor())?.status], ['ok']);
    const path = chainPath(chain, 'layer-0.qcow2');
    const file = await open(path, 'r+');
    const byte = Buffer.alloc(1);
    await file.read(byte, 0, 1, 70_000);
    await file.write(Buffer.from([byte.readUInt8(0) ^ 1]), 0, 1, 70_000);
    await file.close();
    const found = await doctor();
    assert.equal(found?.status, 'damaged');
    assert.equal(found?.detail, `${path} is not what was written there`);
    // The top is still written to, and has no digest.
    await appendFile(chainPath(chain, 'layer-1.qcow2'), 'more');
    await rm(path);
    assert.match((await doctor())?.detail ?? '', /layer-0\.qcow2 is missing/);
  });
});
