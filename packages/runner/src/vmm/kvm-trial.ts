/** Whether guests run under KVM on this host: only one that does proves it. */
import { access, constants } from 'node:fs/promises';
import { BootWatch, PRINTS_EARLY } from '@releap/contract/boot-watch';
import { killGroup, startProcess, toolEnvironment } from '../process/index.ts';
import type { Accelerator } from './accelerator.ts';
import { cpuModel, DEVICE_MODEL, deviceModel } from './qemu/device-model.ts';
import type { NamedCpu } from './qemu/device-model.ts';
import { tuning } from './tuning.ts';
import { vmmCommand } from './qemu/vmm-store.ts';
import type { Vmm } from './qemu/vmm-store.ts';

/** What the guest agent prints on its console once it runs. */
const GUEST_READY = 'releap: ready';

/** Milliseconds of each step of a trial that has succeeded. */
export type TrialSteps = Record<string, number>;

/** A step of a trial has failed. */
export class TrialStepError extends Error {
  constructor(step: string, cause: unknown) {
    super(`${step}: ${(cause as Error).message}`, { cause });
    this.name = 'TrialStepError';
  }
}

export interface TrialResult {
  accelerator: Accelerator;
  reason: string;
  /** Whether a guest was started. */
  tried: boolean;
}

export interface TrialOptions {
  vmm: Vmm;
  kernel: { path: string };
  initramfs: string;
  /** Processor of guests, instead of the host's. */
  cpu?: NamedCpu | undefined;
  /** Takes a micro-VM through its life cycle under KVM, once a guest has booted. @throws with the step that has failed */
  tryLifeCycle: (signal: AbortSignal | undefined) => Promise<TrialSteps>;
  signal?: AbortSignal | undefined;
}

export interface BootResult {
  /** Why no guest booted; undefined when a guest's first process ran. */
  problem: string | undefined;
  /** Whether a guest was started. */
  tried: boolean;
}

/**
 * Tries whether guests run under KVM: boots one, and then takes a micro-VM through its life cycle.
 * @param boot boots the guest; instead of a real one, for tests
 */
export async function tryKvm(options: TrialOptions, boot = bootUnderKvm): Promise<TrialResult> {
  const started = performance.now();
  const { problem, tried } = await boot(options);
  const bootMs = Math.round(performance.now() - started);
  if (problem !== undefined)
    return {
      accelerator: 'tcg',
      reason: tried ? `no guest boots under KVM here: ${problem}` : problem,
      tried,
    };
  try {
    const steps = { boot: bootMs, ...(await options.tryLifeCycle(options.signal)) };
    const took = Object.entries(steps).map(([name, ms]) => `${name} ${ms} ms`);
    return { accelerator: 'kvm', reason: `a micro-VM ran under KVM: ${took.join(', ')}`, tried: true };
  } catch (error) {
    options.signal?.throwIfAborted();
    return {
      accelerator: 'tcg',
      reason: `a guest boots under KVM here, but no micro-VM runs: ${(error as Error).message}`,
      tried: true,
    };
  }
}

async function bootUnderKvm({ vmm, kernel, initramfs, cpu, signal }: TrialOptions): Promise<BootResult> {
  try {
    await access('/dev/kvm', constants.R_OK | constants.W_OK);
  } catch (error) {
    return {
      problem: `/dev/kvm cannot be opened (${(error as NodeJS.ErrnoException).code})`,
      tried: false,
    };
  }
  const { machine } = deviceModel(DEVICE_MODEL);
  const model = cpuModel('kvm', { deviceModel: DEVICE_MODEL, cpu });
  const args = ['-nodefaults', '-no-user-config', '-nographic', '-no-reboot'];
  args.push('-accel', 'kvm', '-cpu', model, '-machine', machine.kvm, '-smp', '2');
  args.push('-m', '256M', '-object', 'memory-backend-ram,id=ram,size=256M');
  args.push('-serial', 'stdio', '-device', 'virtio-serial-device', '-chardev', 'null,id=agent');
  args.push('-device', 'virtserialport,chardev=agent,name=releap.agent');
  args.push('-kernel', kernel.path, '-initrd', initramfs, '-append', `${PRINTS_EARLY} panic=-1`);
  const command = vmmCommand(vmm.folder);
  const child = startProcess(command.program, [...command.args, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...toolEnvironment(), ...command.env },
  });
  using watch = new BootWatch(tuning('kvm').boot);
  const ended = signal === undefined ? watch.signal : AbortSignal.any([watch.signal, signal]);
  const kill = (): void => killGroup(child);
  ended.addEventListener('abort', kill);
  if (ended.aborted) kill();
  let stderr = '';
  const ready = new Promise<undefined>((resolve) => {
    child.stdout?.on('data', (chunk: Buffer) => {
      watch.add(chunk.toString('latin1'));
      if (watch.console.includes(GUEST_READY)) resolve(undefined);
    });
  });
  child.stderr?.on('data', (chunk: Buffer) => {
    stderr = (stderr + chunk.toString('utf8')).slice(-1_000);
  });
  const closed = new Promise<void>((resolve) => {
    child.once('close', () => resolve());
    child.once('error', (error) => {
      stderr = error.message;
      resolve();
    });
  });
  const problem = closed.then(() =>
    ended.aborted
      ? (ended.reason as Error).message
      : `the VMM ended: ${stderr.trim().split('\n').at(-1) ?? ''}; the console ended: ${JSON.stringify(watch.console.trim().slice(-300))}`,
  );
  try {
    return { problem: await Promise.race([ready, problem]), tried: true };
  } finally {
    ended.removeEventListener('abort', kill);
    killGroup(child);
    await closed;
  }
}
