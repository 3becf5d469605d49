import assert from 'node:assert/strict';
import { mkdir, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { it } from 'node:test';
import { pino } from 'pino';
import { temporaryFolder } from '@releap/testing/oci';
import { countKvmImages } from '../src/machine/kvm-images.ts';
import { findAccelerator, isBelieved, isSameCpu, type Verdict } from '../src/vmm/accelerator.ts';
import { bootId } from '../src/vmm/process-identity.ts';

const DEVICE = '10 2792 1';
const failed: Verdict = { accelerator: 'tcg', tried: true, device: DEVICE, bootId: bootId(), at: Date.now() };

it('a failed trial is believed for the device that it was made with, until the host is restarted or an hour has passed', () => {
  assert.equal(isBelieved(failed, DEVICE), true);
  assert.equal(isBelieved({ ...failed, device: '10 2792 2' }, DEVICE), false);
  assert.equal(isBelieved(failed, ''), false);
  assert.equal(isBelieved({ ...failed, bootId: 'another' }, DEVICE), false);
  assert.equal(isBelieved({ ...failed, at: Date.now() - 61 * 60_000 }, DEVICE), false);
  assert.equal(isBelieved({ ...failed, tried: false }, DEVICE), false);
});

it('a failed trial is not believed on a host that has memory captured under KVM', () => {
  assert.equal(isBelieved(failed, DEVICE, true), false);
  assert.equal(isBelieved({ accelerator: 'kvm' }, DEVICE, true), true);
});

it('a trial that succeeded is not believed once the device is gone', () => {
  assert.equal(isBelieved({ accelerator: 'kvm' }, ''), false);
});

it('memory belongs to the kernel, microcode and flags that it was captured with under KVM', () => {
  assert.equal(isSameCpu('EPYC/25/1/1/kvm-a', 'EPYC/25/1/1/kvm-a'), true);
  assert.equal(isSameCpu('EPYC/25/1/1/kvm-a', 'EPYC/25/1/1/kvm-b'), false);
  // An earlier version did not note them.
  assert.equal(isSameCpu('EPYC/25/1/1', 'EPYC/25/1/1/kvm-b'), true);
  assert.equal(isSameCpu('EPYC/25/1/1', 'EPYC/25/1/2/kvm-b'), false);
});

it('the operator decides: tcg is not tried, and the cached result of a trial stays', async () => {
  await using folder = await temporaryFolder();
  const facts = await findAccelerator({
    choice: 'tcg',
    vmm: { version: '1', folder: '/no/vmm' },
    kernel: { path: '/no/kernel', sha256: '' },
    initramfs: '/no/initramfs',
    cacheDir: folder.path,
    countKvmImages: () => Promise.resolve(1),
    log: pino({ enabled: false }),
  });
  assert.equal(facts.accelerator, 'tcg');
  assert.deepEqual(await readdir(folder.path), []);
});

it('memory captured under KVM is counted in folders of VMs and snapshots', async () => {
  await using folder = await temporaryFolder();
  for (const [name, accelerator] of [
    ['a', 'kvm'],
    ['b', 'tcg'],
  ] as const) {
    await mkdir(join(folder.path, name, 'keep'), { recursive: true });
    await writeFile(join(folder.path, name, 'keep', 'paused.json'), JSON.stringify({ accelerator }));
  }
  await writeFile(join(folder.path, 'snapshot.json'), JSON.stringify({ memory: { accelerator: 'kvm' } }));
  assert.equal(await countKvmImages([folder.path, join(folder.path, 'missing')]), 2);
});

it('a trial that succeeded is believed, and so is a failed one of a version that did not note the device', () => {
  assert.equal(isBelieved({ accelerator: 'kvm' }, DEVICE), true);
  const { device: _, ...old } = failed;
  assert.equal(isBelieved(old, DEVICE), true);
});
