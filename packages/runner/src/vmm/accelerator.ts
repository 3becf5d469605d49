import { createHash } from 'node:crypto';
import { mkdir, readdir, readFile, rename, stat, writeFile } from 'node:fs/promises';
import { release } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from 'pino';
import type { Accelerator } from './hardware.ts';
import { readHostCpu } from './host-cpu.ts';
import type { HostCpu } from './host-cpu.ts';
import { tryKvm } from './kvm-trial.ts';
import type { TrialOptions, TrialResult, TrialSteps } from './kvm-trial.ts';
import { bootId } from './process-identity.ts';

/** What the operator wants (`RELEAP_ACCELERATOR`). `auto`: KVM if guests boot under it, and the emulator otherwise. */
export type AcceleratorChoice = Accelerator | 'auto';

/**
 * How long a failed trial is valid, unless the host restarts or /dev/kvm is created anew (its module was reloaded) before:
 * the host may have been busy. `rlp doctor --probe` removes the verdict when a guest boots after all. On a host that has
 * memory captured under KVM it is not valid at all.
 */
const FAILURE_BELIEVED_MS = 60 * 60_000;
/** Until another trial, where the operator requires KVM. */
const RETRY_MS = 30_000;
/** In the cache folder. */
const VERDICT_FILE = 'accelerator.json';

export interface AcceleratorFacts {
  accelerator: Accelerator;
  /** For logs and reports: what was tried, with which result. */
  reason: string;
  /**
   * Model of the host's processor. Under KVM it ends with a digest of what else guests see of the host:
   * processor flags, microcode, kernel and parameters of KVM.
   */
  hostCpu: string;
  tscKhz: number | undefined;
}

export interface AcceleratorOptions extends Omit<TrialOptions, 'tryLifeCycle'> {
  choice: AcceleratorChoice;
  /** The VMM of new machines. */
  vmm: { version: string };
  kernel: { path: string; sha256: string };
  cacheDir: string;
  /** Suspend images and snapshots on this host that were captured under KVM. */
  countKvmImages: () => Promise<number>;
  log: Logger;
  /** Takes a micro-VM through its life cycle under KVM, on a host with these facts. @throws with the step that has failed */
  tryLifeCycle: (facts: AcceleratorFacts, signal: AbortSignal | undefined) => Promise<TrialSteps>;
  /** Also ends the waiting for KVM: this rejects with its reason. */
  signal?: AbortSignal | undefined;
}

/**
 * Finds out by trial which accelerator this machine has: a /dev/kvm that can be opened proves nothing, as guests hang on
 * some machines that have it. A successful trial is cached until QEMU, a kernel or the processor changes; a failed one for
 * an hour at most and for that device. A device that cannot be opened is tried again each time.
 *
 * With the choice `kvm` it returns only once a micro-VM has run under KVM.
 */
export async function findAccelerator(options: AcceleratorOptions): Promise<AcceleratorFacts> {
  const { choice, cacheDir, log, signal } = options;
  const { hostCpu } = await readHostCpu();
  if (choice === 'tcg') return await factsOf('tcg', 'RELEAP_ACCELERATOR=tcg');
  const key = keyOf(options, hostCpu);
  const path = join(cacheDir, VERDICT_FILE);
  const known = await readFile(path, 'utf8')
    .then((text) => JSON.parse(text) as Verdict)
    .catch(() => undefined);
  const images = await options.countKvmImages();
  const device = await deviceIdentity();
  if (known?.key === key && isBelieved(known, device, choice === 'kvm' || images > 0)) {
    const facts = await factsOf(known.accelerator, String(known.reason));
    if (known.later === true) await saveVerdict(path, { ...known, later: false });
    log.info(facts, 'accelerator known from an earlier trial');
    return facts;
  }
  for (;;) {
    const { accelerator, reason, tried } = await trial(options);
    signal?.throwIfAborted();
    const facts = await factsOf(accelerator, reason);
    const now = { bootId: bootId(), at: Date.now() };
    const verdict = { key, accelerator, reason, tried, device: await deviceIdentity(), images, ...now };
    await saveVerdict(path, verdict satisfies Verdict);
    if (accelerator === 'kvm') {
      log.info(facts, 'accelerator found by trial');
      return facts;
    }
    if (choice === 'auto') {
      if (images > 0)
        log.error(
          { ...facts, images },
          'KVM does not work, and this host has memory that was captured under KVM: guests are emulated, about ten times slower, and that ' +
            'memory is blocked until a start under KVM. RELEAP_ACCELERATOR=kvm waits for KVM instead',
        );
      else log.warn(facts, 'no hardware virtualisation: guests are emulated, about ten times slower');
      return facts;
    }
    log.error(
      { reason, again_in_ms: RETRY_MS },
      'RELEAP_ACCELERATOR=kvm, and KVM does not work: this host is not ready until it does. With auto or tcg guests are emulated',
    );
    await sleep(RETRY_MS, undefined, { signal });
  }
}

async function factsOf(accelerator: Accelerator, reason: string): Promise<AcceleratorFacts> {
  const { hostCpu, details, tscKhz } = await readHostCpu();
  const identity = accelerator === 'kvm' ? `${hostCpu}/kvm-${await kvmIdentity(details)}` : hostCpu;
  return { accelerator, reason, hostCpu: identity, tscKhz };
}

async function trial({ tryLifeCycle, ...options }: AcceleratorOptions): Promise<TrialResult> {
  const cycle = async (signal: AbortSignal | undefined): Promise<TrialSteps> =>
    await tryLifeCycle(await factsOf('kvm', 'a trial'), signal);
  return await tryKvm({ ...options, tryLifeCycle: cycle });
}

/** What a result is valid for. */
function keyOf(
  { vmm, kernel, cpu }: Pick<AcceleratorOptions, 'vmm' | 'kernel' | 'cpu'>,
  hostCpu: string,
): string {
  const parts = [vmm.version, kernel.sha256, release(), hostCpu, ...(cpu ? [cpu.identity] : [])];
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex');
}

/** Tries KVM once more, on a host that emulates guests. A trial that succeeds is the next start's result. */
export async function tryKvmAgain(options: AcceleratorOptions): Promise<boolean> {
  const { cacheDir, signal } = options;
  const { accelerator, reason, tried } = await trial(options);
  if (signal?.aborted === true || accelerator !== 'kvm') return false;
  const { hostCpu } = await readHostCpu();
  const now = { bootId: bootId(), at: Date.now(), device: await deviceIdentity() };
  const verdict = { key: keyOf(options, hostCpu), accelerator, reason, tried, later: true, ...now };
  await saveVerdict(join(cacheDir, VERDICT_FILE), verdict);
  return true;
}

async function saveVerdict(path: string, verdict: Verdict): Promise<void> {
  await mkdir(dirname(path), { recursive: true });
  const partial = `${path}.${process.pid}.partial`;
  await writeFile(partial, JSON.stringify(verdict));
  await rename(partial, path);
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
  /** A service found it that had begun to emulate guests before, and does until it is started again. */
  later?: boolean;
  /** How many images captured under KVM the host had. */
  images?: number;
}

/** Changes when the kernel creates the device again, or its permissions change. Empty when there is none. */
async function deviceIdentity(): Promise<string> {
  return await stat('/dev/kvm').then(
    ({ ino, rdev, ctimeMs }) => [ino, rdev, ctimeMs].join(' '),
    () => '',
  );
}

/**
 * Whether the result of an earlier trial is still valid.
 * @param device the current `deviceIdentity`
 * @param needsKvm a failed trial is repeated at each start
 */
export function isBelieved(
  verdict: Verdict,
  device: string,
  needsKvm = false,
): verdict is Verdict & { accelerator: Accelerator } {
  // Without the device no VMM starts, whatever worked before.
  if (verdict.accelerator === 'kvm') return device !== '';
  if (needsKvm) return false;
  if (verdict.device !== undefined && verdict.device !== device) return false;
  if (verdict.accelerator !== 'tcg' || verdict.tried !== true || verdict.bootId !== bootId()) return false;
  const age = Date.now() - (verdict.at ?? 0);
  return age >= 0 && age < FAILURE_BELIEVED_MS;
}

/** Digest of what a guest under KVM sees of the host besides the processor's model. */
async function kvmIdentity(details: HostCpu['details']): Promise<string> {
  const parameters: string[] = [];
  for (const name of ['kvm', 'kvm_intel', 'kvm_amd']) {
    const folder = `/sys/module/${name}/parameters`;
    const names: string[] = await readdir(folder).catch(() => []);
    for (const parameter of names.sort()) {
      // Unreadable ones are the same for all.
      const value = await readFile(join(folder, parameter), 'utf8').catch(() => '');
      parameters.push(`${name}.${parameter}=${value.trim()}`);
    }
  }
  const identity = JSON.stringify([release(), ...details, ...parameters]);
  return createHash('sha256').update(identity).digest('hex').slice(0, 12);
}
