import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, rm, symlink, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, it } from 'node:test';
import { BackgroundDurability } from '../src/machine/background-durability.ts';
import { MemoryBlockedError, NotResumableError, SuspendImage } from '../src/machine/suspend-image.ts';
import type { Platform } from '../src/template/machine-size.ts';
import { DEVICE_MODEL } from '../src/vmm/qemu/device-model.ts';
import { driverWith } from './support/driver.ts';

let folder: string;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'releap-km-'));
});
after(async () => {
  await rm(folder, { recursive: true, force: true });
});

const VMM = '8.2.2';
const PLATFORM = {
  accelerator: 'tcg',
  hostCpu: 'cpu',
  hardware: { deviceModel: DEVICE_MODEL },
  mac: '02:00:00:00:00:01',
  driver: driverWith(VMM),
} as Platform;
/** A host without that VMM. */
const WITHOUT_VMM = { ...PLATFORM, driver: driverWith('10.0.2') };

/** Whole, and not fsynced yet. */
async function suspended(platform = PLATFORM): Promise<{ image: SuspendImage; keep: string }> {
  const keep = await mkdtemp(join(folder, 'keep-'));
  const image = new SuspendImage(keep);
  await writeFile(image.memory, Buffer.alloc(1024 * 1024));
  await writeFile(image.state, 'state');
  const shape = { vcpus: 1, memMib: 1 };
  const diskBytes = { scratch: 1, docker: 1 };
  const system = { path: join(folder, 'system'), sha256: '5' };
  await writeFile(system.path, 'system');
  const hardware = { ...platform.hardware, system };
  await image.complete(platform, { vmm: VMM, shape, diskBytes, stateBytes: 5, hardware });
  return { image, keep };
}

/** As it is after the host has been started again. */
async function restartHost(keep: string): Promise<void> {
  const path = join(keep, 'paused.json');
  const suspension = JSON.parse(await readFile(path, 'utf8')) as object;
  await writeFile(path, JSON.stringify({ ...suspension, bootId: 'earlier' }));
}

const isDurable = async (keep: string): Promise<boolean> => (await readdir(keep)).includes('durable');

it('memory that is about to be used is not reported as durable, whatever its progress', async () => {
  for (let ticks = 0; ticks < 60; ticks++) {
    const { image, keep } = await suspended();
    const durability = new BackgroundDurability();
    const done = durability.run('vm', image);
    for (let tick = 0; tick < ticks; tick++) await new Promise((resolve) => setImmediate(resolve));
    durability.abort('vm');
    await image.unmarkDurable();
    await done;
    assert.equal(await isDurable(keep), false, `after ${ticks} ticks`);
    // Not used after all.
    await image.makeDurable();
    assert.equal(await isDurable(keep), true);
  }
});

/** Waits in the middle of writing that it is durable. */
class SlowImage extends SuspendImage {
  readonly writes = Promise.withResolvers<void>();
  readonly go = Promise.withResolvers<void>();

  override async markDurable(...args: Parameters<SuspendImage['markDurable']>): Promise<void> {
    this.writes.resolve();
    await this.go.promise;
    await super.markDurable(...args);
  }
}

it('a folder in which memory is made durable is removed when nothing writes to it any more', async () => {
  const { keep } = await suspended();
  const image = new SlowImage(keep);
  const durability = new BackgroundDurability();
  const done = durability.run('vm', image);
  await image.writes.promise;
  // As after a restart of the runner: begun again, and then removed.
  const again = durability.run('vm', image);
  let stopped = false;
  const stopping = durability.stop('vm').then(() => (stopped = true));
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(stopped, false);
  image.go.resolve();
  await stopping;
  await rm(keep, { recursive: true });
  await Promise.all([done, again]);
  await assert.rejects(readdir(keep), { code: 'ENOENT' });
});

it('a resume that fails after the host was restarted does not lose the memory', async () => {
  const { image, keep } = await suspended();
  await image.makeDurable();
  await restartHost(keep);
  await image.check(PLATFORM);
  await image.unmarkDurable();
  await image.check(PLATFORM);
  // It may have been used before the host went down.
  await restartHost(keep);
  await assert.rejects(image.check(PLATFORM), NotResumableError);
});

it('memory from before a restart of the host is never reported as durable', async () => {
  const { image, keep } = await suspended();
  await restartHost(keep);
  await image.makeDurable();
  await image.unmarkDurable();
  await assert.rejects(image.check(PLATFORM), NotResumableError);
});

it('memory of another accelerator, processor or VMM is blocked, and damaged memory is lost', async () => {
  const { image } = await suspended();
  for (const other of [{ accelerator: 'kvm' as const }, { hostCpu: 'another' }, { mac: '02:00:00:00:00:02' }])
    await assert.rejects(image.check({ ...PLATFORM, ...other }), MemoryBlockedError);
  await assert.rejects(image.check(WITHOUT_VMM), MemoryBlockedError);
  await image.check(PLATFORM);
  await truncate(image.memory, 1);
  await assert.rejects(image.check(PLATFORM), NotResumableError);
  // What is damaged cannot be resumed on any machine.
  await assert.rejects(image.check({ ...PLATFORM, accelerator: 'kvm' }), NotResumableError);
});

it('memory of a named processor is resumed on any host with that one, and memory of the host with the same host', async () => {
  const cpu = { model: 'EPYC-Milan-v2', identity: 'EPYC-Milan-v2/AuthenticAMD/48' };
  const named = { ...PLATFORM, accelerator: 'kvm', hardware: { deviceModel: DEVICE_MODEL, cpu } } as Platform;
  const plain = { ...named, hardware: { deviceModel: DEVICE_MODEL } } as Platform;
  const elsewhere = { ...named, hostCpu: 'another' };
  const { image } = await suspended(named);
  const { suspension } = await image.check(elsewhere);
  assert.deepEqual(image.hardware(suspension).cpu, cpu);
  assert.equal(suspension.hostCpu, cpu.identity);
  await assert.rejects(image.check(plain), MemoryBlockedError);
  const bits = { ...cpu, identity: 'EPYC-Milan-v2/AuthenticAMD/52' };
  const larger = { ...elsewhere, hardware: { ...elsewhere.hardware, cpu: bits } };
  await assert.rejects(image.check(larger), /EPYC-Milan-v2\/AuthenticAMD\/52/);
  // Saved before the setting, on this host.
  const { image: former } = await suspended(plain);
  await former.check(named);
  await assert.rejects(former.check(elsewhere), MemoryBlockedError);
});

it('memory that cannot be read at the moment is not lost', async () => {
  const { image } = await suspended();
  await rm(image.memory);
  await symlink('memory', image.memory);
  await assert.rejects(image.check(PLATFORM), { code: 'ELOOP' });
});

it('memory that a missing VMM has saved is refused, naming that and what is here', async () => {
  const { image } = await suspended();
  await assert.rejects(image.check(WITHOUT_VMM), /VMM 8\.2\.2, here 10\.0\.2/);
  assert.equal((await image.check(PLATFORM)).vmm.version, VMM);
});
