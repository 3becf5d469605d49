import assert from 'node:assert/strict';
import { copyFile, link, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { placeSystemDisk, removeUnusedSystemDisks } from '../src/machine/system-disk.ts';
import type { Observation } from '../src/reconcile/assignment.ts';
import { DEVICE_MODEL } from '../src/vmm/qemu/device-model.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { BUILD_DIR } from './support/machines.ts';
import { SPEC } from './support/sandbox-spec.ts';
import { TestRunner } from './support/sandboxes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const ID = '11111111-2222-4333-8444-555555555555';
const CHILD = '22222222-2222-4333-8444-555555555555';
/** Whose emulated processor could nest guests. */
const EARLIER = 4;

let runner: TestRunner;
let home: string;
let generation = 0;
before(async () => {
  home = await temporaryFolder('releap-dm-');
  // As an earlier version of the service.
  runner = await TestRunner.open(home, { deviceModel: EARLIER });
});
after(() => runner.dispose());

const sh = (shell: string, id = ID) => runner.sh(id, shell);
const keep = (name: string) => join(home, 'vms', ID, 'keep', name);
interface Saved {
  accelerator: string;
  deviceModel: number;
  system: string;
}
const savedWith = async (): Promise<Saved> =>
  JSON.parse(await readFile(keep('paused.json'), 'utf8')) as Saved;
/** What the processor has for nested guests. */
const nesting = async () => (await sh("grep -m1 -owE 'vmx|svm' /proc/cpuinfo || true")).trim();

async function go(desired: 'running' | 'stopped' | 'paused', from?: 'disk' | 'memory'): Promise<Observation> {
  generation += 1;
  runner.want(ID, generation, desired, from === undefined ? {} : { start_from: from });
  const observation = await runner.reported(generation, desired, { of: ID });
  await runner.reconciler.get(ID)?.idle();
  return observation;
}

describe('memory that was saved with an earlier device model', () => {
  it('is resumed by a service whose new machines have a later one', async () => {
    await go('running');
    await sh('echo remembered > /dev/shm/word');
    const flag = await nesting();
    await go('paused');
    const { deviceModel, accelerator } = await savedWith();
    assert.equal(deviceModel, EARLIER);
    if (accelerator === 'tcg') assert.equal(flag, 'svm');
    await runner.detach();
    runner = await TestRunner.open(home);
    await go('running', 'memory');
    assert.equal(await sh('cat /dev/shm/word'), 'remembered\n');
    assert.equal(await nesting(), flag);
  });

  it('is saved and forked with that model again', async () => {
    runner.want(CHILD, 1, 'running', {
      start_from: 'memory',
      spec: { ...SPEC, origin: { type: 'fork', vm_id: ID } },
    });
    await runner.reported(1, 'running', { of: CHILD });
    assert.equal(await sh('cat /dev/shm/word', CHILD), 'remembered\n');
    await go('paused');
    assert.equal((await savedWith()).deviceModel, EARLIER);
    await go('running', 'memory');
    assert.equal(await sh('cat /dev/shm/word'), 'remembered\n');
  });

  it('has the processor of the present model once it is started from its disk', async () => {
    await sh('echo written > /word');
    await go('stopped');
    await go('running', 'disk');
    assert.equal(
      await sh('cat /word; cd /sys/class/block && echo vd*'),
      'written\nvda vdb vdc vdd vde vdf\n',
    );
    assert.equal(await nesting(), '');
  });
});

describe('a machine of the present device model', () => {
  it('has spare devices that nothing in the guest takes for a disk, and a read-only system disk', async () => {
    assert.equal(
      await sh('cd /sys/class/block && cat vdd/ro vde/size vdf/size; cat /sys/class/virtio-ports/*/name'),
      '1\n0\n0\nreleap.agent\nreleap.spare\n',
    );
  });

  it("gives the guest all modules of its kernel, wherever its image's libraries lie", async () => {
    await sh(`for name in fuse virtiofs bridge veth nf_nat iptable_nat nft_chain_nat dm_mod; do
      modprobe $name || exit 1; grep -q "^$name " /proc/modules || exit 1; done; grep -w fuse /proc/filesystems`);
    const [plain, merged] = await Promise.all([
      sh('cd /lib/modules/$(uname -r) && sha256sum modules.dep'),
      sh('cd /usr/lib/modules/$(uname -r) && sha256sum modules.dep'),
    ]);
    assert.equal(plain, merged);
    // A layer below the image: what is written there is the sandbox's own.
    await sh('echo own > /lib/modules/own && rm /lib/modules/$(uname -r)/modules.softdep');
  });

  it('is resumed with the same system disk that it was booted with, even if set-up has built another since', async () => {
    await go('paused');
    const { deviceModel, system } = await savedWith();
    assert.equal(deviceModel, DEVICE_MODEL);
    await runner.detach();
    // As after an update: another disk is the present one, and the former has lost its name.
    const other = join(home, 'other.squashfs');
    await copyFile(join(BUILD_DIR, 'system.squashfs'), other);
    await writeFile(other, 'more', { flag: 'a' });
    await rm(join(home, 'system', `${system}.squashfs`));
    runner = await TestRunner.open(home, { systemDisk: other });
    await go('running', 'memory');
    await sh('grep -q ^fuse /proc/modules && modprobe vxlan && cat /lib/modules/own');
    await go('paused');
    assert.equal((await savedWith()).system, system);
    await rm(keep('system.squashfs'));
    generation += 1;
    runner.want(ID, generation, 'running', { start_from: 'memory' });
    const { error } = await runner.reported(generation, 'paused', { of: ID });
    assert.match(error ?? '', /system disk that it was booted with is missing/);
  });

  it('leaves no system disk behind that nothing needs', async () => {
    const folder = await mkdtemp(join(home, 'place-'));
    const source = join(folder, 'built');
    const needed = join(folder, 'needed');
    const placed: string[] = [];
    for (const content of ['one', 'two', 'three']) {
      await rm(source, { force: true });
      await writeFile(source, content);
      const disk = await placeSystemDisk(source, join(folder, 'system'));
      await removeUnusedSystemDisks(join(folder, 'system'), disk);
      placed.push(disk.path);
      if (content === 'one') await link(disk.path, needed);
    }
    const left = (await readdir(join(folder, 'system'))).map((name) => join(folder, 'system', name));
    assert.deepEqual(new Set(left), new Set([placed[0], placed[2]]));
    assert.equal((await stat(needed)).nlink, 2);
    // Truncated by a power failure: of the same length, and zeros.
    const [, , last = ''] = placed;
    await rm(last);
    await writeFile(last, Buffer.alloc(5));
    await placeSystemDisk(source, join(folder, 'system'));
    assert.equal(await readFile(last, 'utf8'), 'three');
  });
});
