/** Whether guests run under KVM on this host: only one that boots proves it. */
import { access, constants } from 'node:fs/promises';
import { BootWatch, PRINTS_EARLY } from '@releap/contract/boot-watch';
import { killGroup, startProcess, toolEnvironment } from '../process/index.ts';
import type { Accelerator } from './accelerator.ts';
import { tuning } from './tuning.ts';
import { vmmCommand } from './vmm-store.ts';
import type { Vmm } from './vmm-store.ts';

/** What the guest agent prints on its console once it runs. */
const GUEST_READY = 'releap: ready';

export interface TrialResult {
  accelerator: Accelerator;
  reason: string;
  /** Whether a guest was started. */
  tried: boolean;
}

export async function probe(
  vmm: Vmm,
  kernel: string,
  initramfs: string,
  signal: AbortSignal | undefined,
): Promise<TrialResult> {
  try {
    await access('/dev/kvm', constants.R_OK | constants.W_OK);
  } catch (error) {
    return {
      accelerator: 'tcg',
      reason: `/dev/kvm cannot be opened (${(error as NodeJS.ErrnoException).code})`,
      tried: false,
    };
  }
  const started = performance.now();
  const problem = await bootUnderKvm(vmm, kernel, initramfs, signal);
  return problem === undefined
    ? {
        accelerator: 'kvm',
        reason: `a guest booted under KVM in ${Math.round(performance.now() - started)} ms`,
        tried: true,
      }
    : { accelerator: 'tcg', reason: `no guest boots under KVM here: ${problem}`, tried: true };
}

/** @returns why no guest booted; undefined when a guest's first process ran */
async function bootUnderKvm(
  vmm: Vmm,
  kernel: string,
  initramfs: string,
  signal: AbortSignal | undefined,
): Promise<string | undefined> {
  const args = [
    '-nodefaults',
    '-no-user-config',
    '-nographic',
    '-no-reboot',
    '-accel',
    'kvm',
    '-cpu',
    'host',
  ];
  args.push('-machine', 'microvm,acpi=on,pit=on,pic=on,rtc=on,isa-serial=on', '-smp', '2', '-m', '256M');
  args.push('-serial', 'stdio', '-device', 'virtio-serial-device', '-chardev', 'null,id=agent');
  args.push('-device', 'virtserialport,chardev=agent,name=releap.agent');
  args.push('-kernel', kernel, '-initrd', initramfs, '-append', `${PRINTS_EARLY} panic=-1`);
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
    return await Promise.race([ready, problem]);
  } finally {
    ended.removeEventListener('abort', kill);
    killGroup(child);
    await closed;
  }
}
