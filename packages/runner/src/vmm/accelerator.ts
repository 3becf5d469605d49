import { createHash } from 'node:crypto';
import { access, constants, mkdir, readFile, rename, stat, writeFile } from 'node:fs/promises';
import { release } from 'node:os';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { killGroup, startProcess, toolEnvironment } from '../process/index.ts';
import { bootId } from './process-identity.ts';
import { vmmCommand } from './vmm-store.ts';
import type { Vmm } from './vmm-store.ts';

/** How guest code is executed: by hardware virtualisation, or by an emulator that is about ten times slower. */
export type Accelerator = 'kvm' | 'tcg';

/**
 * How long a failed trial is valid, unless the host restarts or /dev/kvm is created anew (its module was reloaded) before:
 * the host may have been busy. `rlp doctor --probe` removes the verdict when a guest boots after all.
 */
const FAILURE_BELIEVED_MS = 24 * 60 * 60_000;
/** Under KVM a guest prints its first line within a second. A guest that hangs is killed after this. */
const PROBE_DEADLINE_MS = 8_000;
const CONSOLE_MAX_BYTES = 64 * 1024;
/** What the guest agent prints on its console once it runs. */
const GUEST_READY = 'releap: ready';

export interface AcceleratorFacts {
  accelerator: Accelerator;
  /** For logs and reports: what was tried, with which result. */
  reason: string;
  /** Model name of the host's processor, from /proc/cpuinfo. */
  hostCpu: string;
  tscKhz: number | undefined;
}

/**
 * Finds out by trial which accelerator this machine has: a /dev/kvm that can be opened proves nothing, as guests hang on
 * some machines that have it. A successful trial is cached until QEMU, a kernel or the processor changes; a failed one for
 * a day at most and for that device. A device that cannot be opened is tried again each time.
 */
export async function findAccelerator(options: {
  vmm: Vmm;
  kernel: { path: string; sha256: string };
  initramfs: string;
  cacheDir: string;
  log: Logger;
}): Promise<AcceleratorFacts> {
  const { vmm, kernel, cacheDir, log } = options;
  const { hostCpu, tscKhz } = await readHostCpu();
  const key = createHash('sha256')
    .update(JSON.stringify([vmm.version, kernel.sha256, release(), hostCpu]))
    .digest('hex');
  const path = join(cacheDir, 'accelerator.json');
  const known = await readFile(path, 'utf8')
    .then((text) => JSON.parse(text) as Verdict)
    .catch(() => undefined);
  const device = await deviceIdentity();
  if (known?.key === key && isBelieved(known, device)) {
    const facts = {
      accelerator: known.accelerator,
      reason: String(known.reason),
      hostCpu,
      tscKhz,
    } as const;
    log.info(facts, 'accelerator known from an earlier trial');
    return facts;
  }
  const { accelerator, reason, tried } = await probe(vmm, kernel.path, options.initramfs);
  const facts: AcceleratorFacts = { accelerator, reason, hostCpu, tscKhz };
  if (accelerator === 'tcg')
    log.warn(facts, 'no hardware virtualisation: guests are emulated, about ten times slower');
  else log.info(facts, 'accelerator found by trial');
  await mkdir(cacheDir, { recursive: true });
  const partial = `${path}.${process.pid}.partial`;
  const now = { bootId: bootId(), at: Date.now() };
  const verdict = { key, accelerator, reason, tried, device, ...now } satisfies Verdict;
  await writeFile(partial, JSON.stringify(verdict));
  await rename(partial, path);
  return facts;
}

/** The cached result, also as older versions have written it. `rlp doctor` reads it too. */
export interface Verdict {
  key?: string;
  accelerator?: Accelerator;
  reason?: string;
  /** Whether a guest was started. */
  tried?: boolean;
  /** `deviceIdentity` at the time of the trial. */
  device?: string;
  bootId?: string;
  /** Milliseconds since 1970. */
  at?: number;
}

/** Changes when the kernel creates the device again, or its permissions change. Empty when there is none. */
async function deviceIdentity(): Promise<string> {
  return await stat('/dev/kvm').then(
    ({ ino, rdev, ctimeMs }) => [ino, rdev, ctimeMs].join(' '),
    () => '',
  );
}

/** Whether the result of an earlier trial is still valid. @param device the current `deviceIdentity` */
export function isBelieved(
  verdict: Verdict,
  device: string,
): verdict is Verdict & { accelerator: Accelerator } {
  if (verdict.accelerator === 'kvm') return true;
  if (verdict.device !== undefined && verdict.device !== device) return false;
  if (verdict.accelerator !== 'tcg' || verdict.tried !== true || verdict.bootId !== bootId()) return false;
  const age = Date.now() - (verdict.at ?? 0);
  return age >= 0 && age < FAILURE_BELIEVED_MS;
}

async function readHostCpu(): Promise<{ hostCpu: string; tscKhz: number | undefined }> {
  const text = await readFile('/proc/cpuinfo', 'utf8');
  const value = (name: string): string => new RegExp(`^${name}\\s*: (.*)$`, 'm').exec(text)?.[1] ?? '';
  const hostCpu = [value('model name'), value('cpu family'), value('model'), value('stepping')].join('/');
  // Where the kernel knows the frequency of the time-stamp counter, "bogomips" is derived from it (two ticks a loop).
  // "cpu MHz" changes with power management.
  const bogomips = Number(value('bogomips'));
  const known = / constant_tsc( |$)/.test(value('flags')) && bogomips > 200 && bogomips < 40_000;
  return { hostCpu, tscKhz: known ? Math.round(bogomips * 500) : undefined };
}

async function probe(
  vmm: Vmm,
  kernel: string,
  initramfs: string,
): Promise<{ accelerator: Accelerator; reason: string; tried: boolean }> {
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
  const problem = await bootUnderKvm(vmm, kernel, initramfs);
  return problem === undefined
    ? {
        accelerator: 'kvm',
        reason: `a guest booted under KVM in ${Math.round(performance.now() - started)} ms`,
        tried: true,
      }
    : { accelerator: 'tcg', reason: `no guest boots under KVM here: ${problem}`, tried: true };
}

/** @returns why no guest booted; undefined when a guest's first process ran */
async function bootUnderKvm(vmm: Vmm, kernel: string, initramfs: string): Promise<string | undefined> {
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
  args.push('-kernel', kernel, '-initrd', initramfs, '-append', 'console=ttyS0 quiet panic=-1');
  const command = vmmCommand(vmm.folder);
  const child = startProcess(command.program, [...command.args, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...toolEnvironment(), ...command.env },
  });
  let text = '';
  let stderr = '';
  const timer = setTimeout(() => killGroup(child), PROBE_DEADLINE_MS);
  const ready = new Promise<undefined>((resolve) => {
    child.stdout?.on('data', (chunk: Buffer) => {
      text = (text + chunk.toString('latin1')).slice(-CONSOLE_MAX_BYTES);
      if (text.includes(GUEST_READY)) resolve(undefined);
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
  const started = performance.now();
  const ended = closed.then(() =>
    performance.now() - started >= PROBE_DEADLINE_MS
      ? `it hangs (nothing from it within ${PROBE_DEADLINE_MS / 1000} s)`
      : `the VMM ended: ${stderr.trim().split('\n').at(-1) ?? ''}`,
  );
  try {
    return await Promise.race([ready, ended]);
  } finally {
    clearTimeout(timer);
    killGroup(child);
    await closed;
  }
}
