import assert from 'node:assert/strict';
import { cp, mkdir, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { BUILD_DIR } from './support/machines.ts';
import { TestRunner } from './support/sandboxes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const id = (n: number): string => `41111111-2222-4333-8444-${String(n).padStart(12, '0')}`;
const [PAUSED, RUNNING, LATER, RESTORED, CHILD] = [1, 2, 3, 4, 5].map(id) as [
  string,
  string,
  string,
  string,
  string,
];
const SNAPSHOT = id(10);

let folder: string;
let home: string;
let older: { buildDir: string; version: string };
let newer: string;
let runner: TestRunner;

/** What set-up built, with an older VMM: the same one by another name, whose options are those of the newest. */
async function withOlderVmm(): Promise<{ buildDir: string; version: string }> {
  const buildDir = join(folder, 'build');
  await mkdir(join(buildDir, 'qemu'), { recursive: true });
  for (const name of ['kernel', 'initramfs.cpio.gz', 'packages', 'system.squashfs'])
    await symlink(join(BUILD_DIR, name), join(buildDir, name));
  const vmm = join(buildDir, 'qemu/newest');
  await cp(join(BUILD_DIR, 'qemu/newest'), vmm, { recursive: true });
  const version = '9.9.99';
  await writeFile(join(vmm, 'version'), `${version}\n`);
  await writeFile(join(vmm, 'package'), 'another\n');
  return { buildDir, version };
}

before(async () => {
  folder = await temporaryFolder('releap-vu-');
  home = join(folder, 'home');
  older = await withOlderVmm();
  newer = (await readFile(join(BUILD_DIR, 'qemu/newest/version'), 'utf8')).trim();
  runner = await TestRunner.open(home, { buildDir: older.buildDir });
});
after(async () => {
  await runner.dispose();
  await rm(folder, { recursive: true, force: true });
});

const vmms = async (): Promise<string[]> => (await readdir(join(home, 'vmm'))).sort();

/** Version of the VMM that a sandbox runs in, by its process. */
async function vmmOf(vmId: string): Promise<string | undefined> {
  const record = JSON.parse(await readFile(join(home, 'vms', vmId, 'vm.json'), 'utf8')) as {
    vmm: string;
    process: { pid: number };
  };
  const executed = await stat(`/proc/${record.process.pid}/exe`);
  const [loader] = await readdir(join(home, 'vmm', record.vmm, 'lib')).then((names) =>
    names.filter((name) => name.startsWith('ld-')),
  );
  assert.equal((await stat(join(home, 'vmm', record.vmm, 'lib', loader ?? ''))).ino, executed.ino);
  return record.vmm;
}

async function upgrade(): Promise<void> {
  await runner.detach();
  runner = await TestRunner.open(home);
}

const REMEMBER = 'head -c 1000000 /dev/urandom > /dev/shm/m; sha256sum /dev/shm/m > /dev/shm/sum';
const RECALL = 'sha256sum -c /dev/shm/sum';

describe('a newer VMM', () => {
  it('runs what is created, while what an older one has saved or runs stays with that one', async () => {
    assert.notEqual(older.version, newer);
    for (const vmId of [PAUSED, RUNNING]) {
      runner.want(vmId, 1, 'running');
      await runner.reported(1, 'running', { of: vmId });
      await runner.sh(vmId, REMEMBER);
    }
    const snapshot = {
      snapshot_id: SNAPSHOT,
      generation: 1,
      desired: 'ready',
      vm_id: RUNNING,
      kind: 'full',
    } as const;
    const taken = await runner.snapshot(snapshot);
    assert.equal(taken.status, 'ready', taken.error);
    assert.equal(taken.fc_version, `QEMU ${older.version}`);
    runner.want(PAUSED, 2, 'paused');
    await runner.reported(2, 'paused', { of: PAUSED });
    await runner.reconciler.get(PAUSED)?.idle();

    await upgrade();
    assert.deepEqual(await vmms(), [newer, older.version].sort());
    await runner.sync(
      [
        { vm_id: PAUSED, generation: 2, desired: 'paused', spec: runner.spec },
        { vm_id: RUNNING, generation: 1, desired: 'running', spec: runner.spec },
      ],
      [snapshot],
    );
    runner.want(LATER, 1, 'running');
    await runner.reported(1, 'running', { of: LATER });
    assert.equal(await vmmOf(LATER), newer);

    runner.want(PAUSED, 3, 'running', { start_from: 'memory' });
    await runner.reported(3, 'running', { of: PAUSED });
    assert.equal(await vmmOf(PAUSED), older.version);
    assert.match(await runner.sh(PAUSED, RECALL), /OK/);

    runner.want(RESTORED, 1, 'running', {
      start_from: 'memory',
      spec: { ...runner.spec, origin: { type: 'snapshot', snapshot_id: SNAPSHOT, kind: 'full' } },
    });
    await runner.reported(1, 'running', { of: RESTORED });
    assert.equal(await vmmOf(RESTORED), older.version);
    assert.match(await runner.sh(RESTORED, RECALL), /OK/);
  });

  it('takes over a sandbox that an older one runs: a fork of it and a pause stay with that one', async () => {
    runner.want(CHILD, 1, 'running', {
      start_from: 'memory',
      spec: { ...runner.spec, origin: { type: 'fork', vm_id: RUNNING } },
    });
    await runner.reported(1, 'running', { of: CHILD });
    assert.equal(await vmmOf(CHILD), older.version);
    assert.match(await runner.sh(CHILD, RECALL), /OK/);
    runner.want(RUNNING, 2, 'paused');
    await runner.reported(2, 'paused', { of: RUNNING });
    await runner.reconciler.get(RUNNING)?.idle();
    const paused = JSON.parse(
      await readFile(join(home, 'vms', RUNNING, 'keep/paused.json'), 'utf8'),
    ) as object;
    assert.equal((paused as { vmm: string }).vmm, older.version);
  });

  it('is the only one that stays when nothing needs the older one any more', async () => {
    for (const vmId of [PAUSED, RESTORED, CHILD]) {
      runner.want(vmId, 9, 'deleted');
      await runner.reported(9, 'deleted', { of: vmId });
    }
    await upgrade();
    assert.deepEqual(await vmms(), [newer, older.version].sort(), 'a paused sandbox and a snapshot need it');
    await runner.sync(
      [],
      [{ snapshot_id: SNAPSHOT, generation: 2, desired: 'deleted', vm_id: RUNNING, kind: 'full' }],
    );
    await upgrade();
    assert.deepEqual(await vmms(), [newer, older.version].sort(), 'what is in quarantine may come back');
    await runner.sync([{ vm_id: RUNNING, generation: 3, desired: 'deleted', spec: runner.spec }]);
    await runner.reported(3, 'deleted', { of: RUNNING });
    await upgrade();
    assert.deepEqual(await vmms(), [newer]);
  });
});
