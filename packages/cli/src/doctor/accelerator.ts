/** Whether guests run on the processor itself or are emulated. Only a guest that boots proves the former. */
import { accessSync, constants, existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { architectureOf } from '@releap/contract/architecture';
import { BootWatch, KVM_BOOT } from '@releap/contract/boot-watch';
import type { Check } from './check.ts';
import { runTool } from './tool.ts';
import { vmmFolder } from './tools.ts';

const HELD = 'this host has saved memory that only KVM can resume: RELEAP_ACCELERATOR=kvm waits for KVM';
const COST = 'guests are emulated (tcg), about ten times slower';
const WORKS = 'kvm: guests run on the processor itself';

export interface AcceleratorOptions {
  /** Where a server of this machine keeps what it found out; its trial is as good as ours. */
  cache: string;
  /** The checkout, whose `build/kernel` holds the guests' kernel. */
  root: string;
  trial: boolean;
  /** Probe it even if a server has a cached result. */
  probe: boolean;
  env: Readonly<Record<string, string | undefined>>;
  signal: AbortSignal;
}

export async function checkAccelerator(options: AcceleratorOptions): Promise<Check> {
  const check = (status: Check['status'], detail: string): Check => ({
    id: 'accelerator',
    title: 'Accelerator',
    status,
    detail,
  });
  const known = options.probe ? undefined : serversFinding(options.cache);
  const choice = options.env['RELEAP_ACCELERATOR'];
  if (choice === 'tcg') return check('ok', 'RELEAP_ACCELERATOR=tcg: guests are emulated');
  if (known?.accelerator === 'kvm' && known.later)
    return check(
      'warn',
      `KVM works (${known.reason}), but the server has begun to emulate guests: restart it`,
    );
  if (known?.accelerator === 'kvm') return check('ok', `${WORKS} (${known.reason})`);
  if (known && choice === 'kvm')
    return check(
      'damaged',
      `${known.reason}; with RELEAP_ACCELERATOR=kvm the server is not ready until it works`,
    );
  if (known) return check('warn', [known.reason, COST, ...(known.images > 0 ? [HELD] : [])].join('; '));
  const closed = deviceProblem();
  if (closed) return check('warn', `${closed}; ${COST}`);
  const kernel = options.env['RELEAP_GUEST_KERNEL'] || join(options.root, 'build/kernel/vmlinuz');
  if (!options.trial)
    return check('warn', '/dev/kvm opens; whether guests run on it was not tried (--no-trial)');
  const vmm = vmmFolder(options.root);
  if (!existsSync(kernel) || !existsSync(vmm))
    return check('warn', '/dev/kvm opens; whether guests run on it cannot be tried before set-up has run');
  const { problem, ms } = await bootTrialGuest(vmm, kernel, options.signal);
  if (problem !== undefined)
    return check('warn', `/dev/kvm opens, but a trial guest did not boot on it: ${problem}; ${COST}`);
  if (options.probe && serversFinding(options.cache)?.accelerator === 'tcg')
    return check('warn', `${WORKS}, but the server found otherwise: ${forgetFinding(options.cache)}`);
  return check('ok', `${WORKS} (a trial guest booted in ${(ms / 1000).toFixed(1)} s)`);
}

function serversFinding(
  cache: string,
): { accelerator: string; reason: string; images: number; later: boolean } | undefined {
  try {
    const found = JSON.parse(readFileSync(join(cache, 'accelerator.json'), 'utf8')) as Record<
      string,
      unknown
    >;
    const { accelerator, reason, images, later } = found;
    if ((accelerator === 'kvm' || accelerator === 'tcg') && typeof reason === 'string')
      return { accelerator, reason, images: Number(images ?? 0), later: later === true };
  } catch {
    // No server has run here: try it ourselves.
  }
  return undefined;
}

/** Makes the next start of the server try it again. @returns what is left to do */
function forgetFinding(cache: string): string {
  const file = join(cache, 'accelerator.json');
  try {
    rmSync(file);
    return 'start it again, and it will try again';
  } catch {
    return `remove ${file} and start it again`;
  }
}

function deviceProblem(): string | undefined {
  if (process.arch !== 'x64') return `no hardware virtualisation for amd64 guests on ${process.arch}`;
  if (!existsSync('/dev/kvm')) {
    const flags = /^flags\s*:.*\b(?:vmx|svm)\b/m.test(readFileSync('/proc/cpuinfo', 'utf8'));
    return flags
      ? 'the processor can virtualise, but there is no /dev/kvm (is the kvm module loaded?)'
      : 'no /dev/kvm: the processor does not offer virtualisation, or it is switched off in the firmware or the outer machine';
  }
  try {
    accessSync('/dev/kvm', constants.R_OK | constants.W_OK);
    return undefined;
  } catch {
    return 'this user may not open /dev/kvm (group kvm, or root)';
  }
}

const TRIAL_ARGS = (
  '-accel kvm -machine q35 -cpu host -smp 1 -m 256 -nodefaults -no-user-config -no-reboot ' +
  '-display none -serial stdio -net none -sandbox on'
).split(' ');

/** A kernel without a root file system: on a real accelerator it panics, and with that ends, within a second or two. */
async function bootTrialGuest(
  vmm: string,
  kernel: string,
  signal: AbortSignal,
): Promise<{ problem: string | undefined; ms: number }> {
  const started = performance.now();
  using watch = new BootWatch(KVM_BOOT);
  let seen = 0;
  // The VMM runs with the loader and the libraries that it was unpacked with.
  const lib = join(vmm, 'lib');
  const names = architectureOf(process.arch);
  const program = ['--inhibit-cache', '--library-path', lib, join(vmm, 'bin', names.vmm)];
  const { output } = await runTool(
    join(lib, names.loader),
    [
      ...program,
      '-L',
      join(vmm, 'firmware'),
      ...TRIAL_ARGS,
      '-kernel',
      kernel,
      '-append',
      `${names.earlyConsole} panic=-1 nokaslr`,
    ],
    {
      timeoutMs: KVM_BOOT.total,
      signal: AbortSignal.any([signal, watch.signal]),
      until: (text) => {
        watch.add(text.slice(seen));
        seen = text.length;
        return text.includes('Kernel panic');
      },
    },
  );
  const ms = performance.now() - started;
  if (output.includes('Kernel panic')) return { problem: undefined, ms };
  return { problem: watch.signal.aborted ? (watch.signal.reason as Error).message : 'its VMM ended', ms };
}
