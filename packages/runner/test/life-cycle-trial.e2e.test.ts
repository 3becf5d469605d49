import assert from 'node:assert/strict';
import { access } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, it, mock } from 'node:test';
import { tryLifeCycle } from '../src/machine/life-cycle-trial.ts';
import { PersistentMachines } from '../src/machine/persistent-machines.ts';
import { SHAPE, testMachines } from './support/machines.ts';

const UID = 1_899_999_997;
let service: Awaited<ReturnType<typeof testMachines>>;
before(async () => {
  service = await testMachines();
});
after(() => service[Symbol.asyncDispose]());

const trial = async (): Promise<Record<string, number>> =>
  await tryLifeCycle({
    machines: service.machines,
    folder: join(service.home, 'vms'),
    shape: SHAPE,
    uid: UID,
    signal: undefined,
  });

it('a micro-VM goes through its life cycle, and nothing of it is left', async () => {
  const steps = await trial();
  assert.deepEqual(Object.keys(steps), ['template', 'restore', 'run', 'pause', 'resume', 'run again']);
  await assert.rejects(access(join(service.home, 'vms')), { code: 'ENOENT' });
  assert.deepEqual(await service.cgroups.list(), []);
});

it('a step that fails is named, and nothing is left either', async () => {
  const resume = mock.method(PersistentMachines.prototype, 'resume', () =>
    Promise.reject(new Error('the VM could not be restored: Invalid argument')),
  );
  try {
    await assert.rejects(trial(), /^TrialStepError: resume: the VM could not be restored: Invalid argument$/);
  } finally {
    resume.mock.restore();
  }
  await assert.rejects(access(join(service.home, 'vms')), { code: 'ENOENT' });
  assert.deepEqual(await service.cgroups.list(), []);
});
