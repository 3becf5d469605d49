/** A start of the runner that fails. */
import assert from 'node:assert/strict';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { leftovers } from '@releap/testing/leftovers';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { CgroupTree } from '../src/cgroup/cgroup-tree.ts';
import { detectLayout } from '../src/cgroup/cgroup-files.ts';
import type { RunnerOptions } from '../src/runner-options.ts';
import { startRunner } from '../src/runner.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { BUILD_DIR, log } from './support/machines.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const LIMITS = { cpu: 1, cpuMax: 1, memoryMib: 64, pids: 10 };
const { version } = await detectLayout();

let folder: string;
before(async () => {
  folder = await temporaryFolder('releap-rs-');
});
after(async () => await rm(folder, { recursive: true, force: true }));

async function homeNamed(name: string): Promise<string> {
  const home = join(folder, name);
  await mkdir(home);
  return home;
}

async function start(home: string, over: Partial<RunnerOptions> = {}): Promise<void> {
  const runner = await startRunner({
    home,
    cacheDir: join(home, 'cache'),
    buildDir: BUILD_DIR,
    // Nothing answers there.
    controlUrl: 'http://127.0.0.1:9',
    joinToken: () => Promise.resolve(undefined),
    accelerator: 'tcg',
    region: 'test',
    listenHost: '127.0.0.1',
    warmPool: { size: 0 },
    tenantPrivateNetworks: [],
    images: { privateHosts: [], cacheMib: 1024, layerMib: 1024 },
    quarantineDays: 1,
    volumeCommitMs: 60_000,
    builds: { parallel: 0, cpus: 1, memMib: 512, diskMib: 512, cacheMib: 512, timeMs: 60_000 },
    log,
    ...over,
  });
  await runner.shutDown();
}

it('leaves nothing when the machine cannot do what was configured', async () => {
  const home = await homeNamed('refused');
  const limit = { diskLimit: { mibPerSecond: 1 } };
  const noModel = { accelerator: 'auto', cpuModel: 'No-Such-Model' } as const;
  await assert.rejects(start(home, version === 1 ? limit : noModel));
  assert.deepEqual(await leftovers(home), []);
});

it('leaves nothing when the network cannot be opened', async () => {
  const home = await homeNamed('offline');
  await mkdir(join(home, 'runner'));
  await writeFile(join(home, 'runner/network'), 'not a folder');
  await assert.rejects(start(home), /EEXIST|ENOTDIR/);
  assert.deepEqual(await leftovers(home), []);
});

it('leaves nothing when it fails late', async () => {
  const home = await homeNamed('late');
  await writeFile(join(home, 'run'), 'not a folder');
  await assert.rejects(start(home), /EEXIST|ENOTDIR/);
  assert.deepEqual(await leftovers(home), []);
});

it('leaves the control groups of sandboxes of an earlier run', async () => {
  const home = await homeNamed('used');
  await writeFile(join(home, 'run'), 'not a folder');
  const tree = await CgroupTree.open(home);
  await tree.create('vm-a', LIMITS);
  await assert.rejects(start(home), /EEXIST|ENOTDIR/);
  assert.deepEqual(await tree.list(), ['vm-a']);
  await tree.remove('vm-a');
  await tree.close();
  assert.deepEqual(await leftovers(home), []);
});
