import assert from 'node:assert/strict';
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { it } from 'node:test';
import { pino } from 'pino';
import { until } from '@releap/testing/eventually';
import { temporaryFolder } from '@releap/testing/oci';
import { countKvmImages } from '../src/machine/kvm-images.ts';
import {
  type AcceleratorFacts,
  type AcceleratorOptions,
  findAccelerator,
  isBelieved,
  tryKvmAgain,
  type Verdict,
} from '../src/vmm/accelerator.ts';
import { TrialStepError, type TrialOptions, type TrialSteps } from '../src/vmm/kvm-trial.ts';
import { KvmWatch } from '../src/vmm/kvm-watch.ts';
import { bootId } from '../src/vmm/process-identity.ts';

/** A guest boots, and ends at once. */
const boot: TrialOptions['boot'] = async () => await Promise.resolve({ problem: undefined, tried: true });
const DEVICE = '10 2792 1';
const optionsIn = (cacheDir: string, changed: Partial<AcceleratorOptions> = {}): AcceleratorOptions => ({
  choice: 'auto',
  vmm: { version: '1' },
  kernel: { path: '/no/kernel', sha256: '' },
  initramfs: '/no/initramfs',
  boot,
  cacheDir,
  countKvmImages: () => Promise.resolve(0),
  tryLifeCycle: () => Promise.resolve({}),
  log: pino({ enabled: false }),
  ...changed,
});
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

it('the operator decides: tcg is not tried, and the cached result of a trial stays', async () => {
  await using folder = await temporaryFolder();
  const facts = await findAccelerator(
    optionsIn(folder.path, { choice: 'tcg', countKvmImages: () => Promise.resolve(1) }),
  );
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

it('a trial that failed once is repeated, and one that then succeeds is the result of the next start', async () => {
  await using folder = await temporaryFolder();
  const options = optionsIn(folder.path);
  const problems = ['it hangs', 'it hangs', undefined];
  let trials = 0;
  let works = false;
  const watch = new KvmWatch({
    tryKvm: async (signal) => {
      const scripted: typeof boot = async () => {
        const problem = problems[trials];
        trials += 1;
        return await Promise.resolve({ problem, tried: true });
      };
      works = await tryKvmAgain({ ...options, boot: scripted, signal });
      return works;
    },
    everyMs: { first: 1, later: 1 },
    log: options.log,
  });
  await until(() => works);
  await watch.close();
  assert.equal(trials, 3);
  const path = join(folder.path, 'accelerator.json');
  const verdict = JSON.parse(await readFile(path, 'utf8')) as Verdict;
  assert.deepEqual([verdict.accelerator, verdict.later], ['kvm', true]);
  // Valid where the machine has the device; a start then takes it for its own.
  if (verdict.device === '') return;
  assert.equal((await findAccelerator(options)).accelerator, 'kvm');
  assert.equal((JSON.parse(await readFile(path, 'utf8')) as Verdict).later, false);
});

it('a host on which guests boot and a later step fails has no KVM, and its report names the step', async () => {
  await using folder = await temporaryFolder();
  const options = optionsIn(folder.path, {
    tryLifeCycle: () => Promise.reject(new TrialStepError('restore', new Error('Invalid argument'))),
  });
  const failed = await findAccelerator(options);
  assert.equal(failed.accelerator, 'tcg');
  assert.match(failed.reason, /no micro-VM runs: restore: Invalid argument$/);
  const verdict = JSON.parse(await readFile(join(folder.path, 'accelerator.json'), 'utf8')) as Verdict;
  assert.deepEqual([verdict.accelerator, verdict.tried], ['tcg', true]);
  // With the choice `kvm` the failed trial is not believed.
  let cpu = '';
  const tryLifeCycle = async (facts: AcceleratorFacts): Promise<TrialSteps> => {
    cpu = facts.hostCpu;
    return await Promise.resolve({ template: 900, restore: 50 });
  };
  const works = await findAccelerator({ ...options, choice: 'kvm', tryLifeCycle });
  assert.equal(works.accelerator, 'kvm');
  assert.match(works.reason, /^a micro-VM ran under KVM: boot \d+ ms, template 900 ms, restore 50 ms$/);
  assert.equal(cpu, works.hostCpu);
});

it('a trial that ends for another reason is no verdict', async () => {
  await using folder = await temporaryFolder();
  const signal = AbortSignal.abort(new Error('the service stops'));
  const tryLifeCycle = (): Promise<TrialSteps> => Promise.reject(signal.reason as Error);
  const stopped = findAccelerator(optionsIn(folder.path, { tryLifeCycle, signal }));
  await assert.rejects(stopped, /the service stops/);
  assert.deepEqual(await readdir(folder.path), []);
});

it('the end of the service ends a trial that is under way', async () => {
  let begun = false;
  const watch = new KvmWatch({
    tryKvm: async (signal) => {
      begun = true;
      await new Promise((resolve) => signal.addEventListener('abort', resolve));
      return false;
    },
    everyMs: { first: 1, later: 1 },
    log: pino({ enabled: false }),
  });
  await until(() => begun);
  await watch.close();
});
