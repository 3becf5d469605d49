/** Whether guests run under KVM on this host: only one that does proves it. */
import type { Accelerator, NamedCpu } from './hardware.ts';

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

/** What a guest is booted with. */
export interface TrialBoot {
  kernel: { path: string };
  initramfs: string;
  /** Processor of guests, instead of the host's. */
  cpu?: NamedCpu | undefined;
  signal?: AbortSignal | undefined;
}

export interface TrialOptions extends TrialBoot {
  /** Boots a guest under KVM until its first process runs. */
  boot: (options: TrialBoot) => Promise<BootResult>;
  /** Takes a micro-VM through its life cycle under KVM, once a guest has booted. @throws with the step that has failed */
  tryLifeCycle: (signal: AbortSignal | undefined) => Promise<TrialSteps>;
}

export interface BootResult {
  /** Why no guest booted; undefined when a guest's first process ran. */
  problem: string | undefined;
  /** Whether a guest was started. */
  tried: boolean;
}

/** Tries whether guests run under KVM: boots one, and then takes a micro-VM through its life cycle. */
export async function tryKvm(options: TrialOptions): Promise<TrialResult> {
  const started = performance.now();
  const { problem, tried } = await options.boot(options);
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
