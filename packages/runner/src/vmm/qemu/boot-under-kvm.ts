import { access, constants } from 'node:fs/promises';
import { BootWatch } from '@releap/contract/boot-watch';
import { killGroup, startProcess, toolEnvironment } from '../../process/index.ts';
import type { Vmm } from '../driver.ts';
import type { BootResult, TrialBoot } from '../kvm-trial.ts';
import { tuning } from '../tuning.ts';
import { cpuModel, DEVICE_MODEL, deviceModel } from './device-model.ts';
import { vmmCommand } from './vmm-store.ts';

/** What the guest agent prints on its console once it runs. */
const GUEST_READY = 'releap: ready';

/** Boots a guest under KVM with the devices of new machines, until its first process runs. */
export async function bootUnderKvm(
  vmm: Vmm,
  { kernel, initramfs, cpu, signal }: TrialBoot,
): Promise<BootResult> {
  try {
    await access('/dev/kvm', constants.R_OK | constants.W_OK);
  } catch (error) {
    return {
      problem: `/dev/kvm cannot be opened (${(error as NodeJS.ErrnoException).code})`,
      tried: false,
    };
  }
  const { architecture, machine } = deviceModel(DEVICE_MODEL);
  const model = cpuModel('kvm', { deviceModel: DEVICE_MODEL, cpu });
  const args = ['-nodefaults', '-no-user-config', '-nographic', '-no-reboot'];
  args.push('-accel', 'kvm', '-cpu', model, '-machine', machine.kvm, '-smp', '2');
  args.push('-m', '256M', '-object', 'memory-backend-ram,id=ram,size=256M');
  args.push('-serial', 'stdio', '-device', 'virtio-serial-device', '-chardev', 'null,id=agent');
  args.push('-device', 'virtserialport,chardev=agent,name=releap.agent');
  args.push('-kernel', kernel.path, '-initrd', initramfs, '-append', `${architecture.earlyConsole} panic=-1`);
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
