import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, rm, symlink, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, it } from 'node:test';
import { BackgroundDurability } from '../src/machine/background-durability.ts';
import { MemoryBlockedError, NotResumableError, SuspendImage } from '../src/machine/suspend-image.ts';
import type { Platform } from '../src/template/machine-size.ts';
import { DEVICE_MODEL } from '../src/vmm/qemu/device-model.ts';

let folder: string;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'releap-km-'));
});
after(async () => {
  await rm(folder, { recursive: true, force: true });
});

const PLATFORM = {
  accelerator: 'tcg',
  hostCpu: 'cpu',
  hardware: { deviceModel: DEVICE_MODEL },
  mac: '02:00:00:00:00:01',
} as Platform;
const VMM = { version: '8.2.2', folder: '/vmm' };
const VMMS = {
  versions: [VMM.version],
  forState: (version: string) => (version === VMM.version ? VMM : undefined),
};

/** Whole, and not fsynced yet. */
async function suspended(platform = PLATFORM): Promise<{ image: SuspendImage; keep: string }> {
  const keep = await mkdtemp(join(folder, 'keep-'));
  const image = new SuspendImage(keep);
  await writeFile(image.memory, Buffer.alloc(1024 * 1024));
  await writeFile(image.state, 'state');
  const { accelerator, hostCpu, mac } = platform;
  const shape = { vcpus: 1, memMib: 1 };
  const diskBytes = { scratch: 1, docker: 1 };
  const facts = { vmm: VMM.version, accelerator, hostCpu, mac, shape, diskBytes, stateBytes: 5 };
  const system = { path: join(folder, 'system'), sha256: '5' };
  await writeFile(system.path, 'system');
  await image.complete(facts, { ...platform.hardware, system });
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
  await image.check(PLATFORM, VMMS);
  await image.unmarkDurable();
  await image.check(PLATFORM, VMMS);
  // It may have been used before the host went down.
  await restartHost(keep);
  await assert.rejects(image.check(PLATFORM, VMMS), NotResumableError);
});

it('memory from before a restart of the host is never reported as durable', async () => {
  const { image, keep } = await suspended();
  await restartHost(keep);
  await image.makeDurable();
  await image.unmarkDurable();
  await assert.rejects(image.check(PLATFORM, VMMS), NotResumableError);
});

it('memory of another accelerator, processor or VMM is blocked, and damaged memory is lost', async () => {
  const { image } = await suspended();
  for (const other of [{ accelerator: 'kvm' as const }, { hostCpu: 'another' }, { mac: '02:00:00:00:00:02' }])
    await assert.rejects(image.check({ ...PLATFORM, ...other }, VMMS), MemoryBlockedError);
  await assert.rejects(image.check(PLATFORM, { ...VMMS, forState: () => undefined }), MemoryBlockedError);
  await image.check(PLATFORM, VMMS);
  await truncate(image.memory, 1);
  await assert.rejects(image.check(PLATFORM, VMMS), NotResumableError);
  // What is damaged cannot be resumed on any machine.
  await assert.rejects(image.check({ ...PLATFORM, accelerator: 'kvm' }, VMMS), NotResumableError);
});

it('memory of a named processor is resumed on any host with that one, and memory of the host with the same host', async () => {
  const cpu = { model: 'EPYC-Milan-v2', identity: 'EPYC-Milan-v2/AuthenticAMD/48' };
  const named = { ...PLATFORM, accelerator: 'kvm', hardware: { deviceModel: DEVICE_MODEL, cpu } } as Platform;
  const plain = { ...named, hardware: { deviceModel: DEVICE_MODEL } } as Platform;
  const elsewhere = { ...named, hostCpu: 'another' };
  const { image } = await suspended(named);
  const { suspension } = await image.check(elsewhere, VMMS);
  assert.deepEqual(image.hardware(suspension).cpu, cpu);
  assert.equal(suspension.hostCpu, cpu.identity);
  await assert.rejects(image.check(plain, VMMS), MemoryBlockedError);
  const bits = { ...cpu, identity: 'EPYC-Milan-v2/AuthenticAMD/52' };
  const larger = { ...elsewhere, hardware: { ...elsewhere.hardware, cpu: bits } };
  await assert.rejects(image.check(larger, VMMS), /EPYC-Milan-v2\/AuthenticAMD\/52/);
  // Saved before the setting, on this host.
  const { image: former } = await suspended(plain);
  await former.check(named, VMMS);
  await assert.rejects(former.check(elsewhere, VMMS), MemoryBlockedError);
});

it('memory that cannot be read at the moment is not lost', async () => {
  const { image } = await suspended();
  await rm(image.memory);
  await symlink('memory', image.memory);
  await assert.rejects(image.check(PLATFORM, VMMS), { code: 'ELOOP' });
});

it('memory that a missing VMM has saved is refused, naming that and what is here', async () => {
  const { image } = await suspended();
  const none = { versions: ['10.0.2'], forState: () => undefined };
  await assert.rejects(image.check(PLATFORM, none), /VMM 8\.2\.2, here 10\.0\.2/);
  assert.equal((await image.check(PLATFORM, VMMS)).vmm, VMM);
});
