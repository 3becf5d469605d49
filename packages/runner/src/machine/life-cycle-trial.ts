/** Whether a micro-VM goes through its life cycle on this host, as a sandbox's does: a guest that boots may still not be restored. */
import { mkdir, rm, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { awaitAgent } from '../template/agent-hello.ts';
import type { MachineSize } from '../template/machine-size.ts';
import { TrialStepError } from '../vmm/kvm-trial.ts';
import type { TrialSteps } from '../vmm/kvm-trial.ts';
import { DEADLINES_MS } from '../vmm/tuning.ts';
import type { RunningVm, VmSlot } from './boot-options.ts';
import type { Machines } from './machines.ts';

const ID = 'trial';
const SCRATCH_MIB = 8;
/** Of an image that no guest mounts. */
const IMAGE_BYTES = 1024 * 1024;

export interface LifeCycleOptions {
  machines: Machines;
  /** Folder of these machines, which is emptied. */
  folder: string;
  shape: MachineSize;
  /** User and group of the VMM. */
  uid: number;
  signal: AbortSignal | undefined;
}

/**
 * Boots a guest and saves it as a template, restores it into private memory, runs it, pauses it with its written memory to a suspend image,
 * and resumes it from that. The template stays in the cache, where the first sandbox finds it.
 * @returns the duration of each step
 * @throws TrialStepError that names the step
 */
export async function tryLifeCycle(options: LifeCycleOptions): Promise<TrialSteps> {
  const { machines, folder, shape, uid, signal } = options;
  const { templates, persistent } = machines;
  const steps: TrialSteps = {};
  const step = async <T>(name: string, run: () => Promise<T>): Promise<T> => {
    const started = performance.now();
    try {
      const result = await run();
      steps[name] = Math.round(performance.now() - started);
      return result;
    } catch (error) {
      signal?.throwIfAborted();
      throw new TrialStepError(name, error);
    }
  };
  // A network namespace of its own, which ends with the VMM.
  const slot: VmSlot = { uid, netnsPath: 'new', tap: 'tap0' };
  const rootImagePath = join(folder, 'image');
  const place = { vmId: ID, slot, cpu: { guaranteed: 1, max: shape.vcpus }, signal };
  const answered = async ({ vm, agentSocketPath }: RunningVm): Promise<void> => {
    const alive = (): boolean => !vm.exited;
    await awaitAgent(agentSocketPath, { deadlineMs: DEADLINES_MS.agent, alive, signal });
  };
  let running: RunningVm | undefined;
  try {
    await rm(folder, { recursive: true, force: true });
    await mkdir(folder, { recursive: true, mode: 0o700 });
    await writeFile(rootImagePath, '');
    await truncate(rootImagePath, IMAGE_BYTES);
    await step('template', async () => await templates.ensure(shape, signal));
    const disks = { rootImagePath, scratchMib: SCRATCH_MIB };
    const restored = await step('restore', async () => await persistent.boot({ ...place, shape, disks }));
    running = restored;
    await step('run', async () => await answered(restored));
    await step('pause', async () => {
      await using pausing = await persistent.beginPause(ID, restored);
      await pausing.finish();
    });
    await machines.end(ID);
    const resumed = await step('resume', async () => await persistent.resume({ ...place, rootImagePath }));
    running = resumed;
    await step('run again', async () => await answered(resumed));
    return steps;
  } finally {
    running?.vm.detach();
    await machines.destroy(ID);
    await rm(folder, { recursive: true, force: true });
  }
}
