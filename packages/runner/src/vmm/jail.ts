import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { HOSTD } from '../host/hostd.ts';
import { DESCRIPTORS, JAILED_VMM, shareDescriptor, SOCKETS } from './qemu/vmm-paths.ts';
import { vmmCommand } from './qemu/vmm-store.ts';

/** More than a sandbox of 64 virtual CPUs needs under KVM, with all layers and volumes that it may have: a test counts them. */
export const OPEN_FILES_MAX = 1024;
/** vCPU, I/O and migration threads: all processes of one slot's user. */
const THREADS_MAX = 512;

/** oom_score_adj, see proc(5): from -1000 (never killed) to 1000 (first). The service's own value is below 0. */
const OOM_SCORE_ADJ = { guaranteed: 500, spot: 800 } as const;

export interface LaunchOptions {
  /** Folder of the VMM. */
  vmmFolder: string;
  /** QEMU's own arguments, with the `JAILED` places. */
  args: string[];
  withKvm: boolean;
  /** Folder of the files that it may use, and its chroot. */
  root: string;
  /** Folder of its sockets. */
  socketDir: string;
  /** Path of the network namespace, or `new` for an empty one that ends with the process. */
  netns: string;
  /** Name of its tap in there. */
  tap: string;
  /** `cgroup.procs` files to join before the VMM is executed. */
  cgroupProcs: string[];
  /** Largest file that the VMM may write, in MiB. */
  fileMaxMib: number;
  /** Open file for standard output and error, which outlives this process. Bounded by `fileMaxMib`. */
  outputFd: number;
  /** Paths of the sockets of the servers of shared folders. */
  shares: readonly string[];
  /** Descriptors in this process of the files that it inherits. */
  files: Partial<Record<'memory' | 'state' | 'system' | 'kernel' | 'initramfs', number>>;
}

/**
 * Starts a VMM in a session of its own, so that it outlives the runner. It inherits only the listed descriptors, has no
 * access to the host's files but its own folders, and drops root before any guest code runs.
 */
export function launchVmm(options: LaunchOptions): ChildProcess {
  const { outputFd } = options;
  const command = vmmCommand(JAILED_VMM);
  const child = spawn(
    HOSTD,
    ['jail', ...jailArguments(options), '--', command.program, ...command.args, ...options.args],
    {
      detached: true,
      cwd: '/',
      stdio: ['ignore', outputFd, outputFd, ...inheritedFiles(options.files)],
      env: { LC_ALL: 'C', ...command.env },
    },
  );
  child.unref();
  if (child.pid !== undefined) setOomScore(child.pid, 'guaranteed');
  return child;
}

function jailArguments(options: LaunchOptions): string[] {
  const { vmmFolder, root, socketDir, netns, tap, cgroupProcs, fileMaxMib, withKvm } = options;
  const values: [string, string | number][] = [
    ['program', vmmFolder],
    ['folder', root],
    ['netns', netns],
    ['nofile', OPEN_FILES_MAX],
    ['fsize-kib', fileMaxMib * 1024],
    ['nproc', THREADS_MAX],
    ['tap', `${tap}=${DESCRIPTORS.tap}`],
  ];
  for (const file of cgroupProcs) values.push(['cgroup', file]);
  for (const name of SOCKETS) values.push(['listen', `${join(socketDir, name)}=${DESCRIPTORS[name]}`]);
  for (const [index, path] of options.shares.entries())
    values.push(['connect', `${path}=${shareDescriptor(index)}`]);
  const all = values.flatMap(([name, value]) => [`--${name}`, String(value)]);
  return withKvm ? ['--kvm', ...all] : all;
}

/** Entries of `stdio` from descriptor 3 on. */
function inheritedFiles(files: LaunchOptions['files']): ('ignore' | number)[] {
  const names = ['memory', 'state', 'system', 'kernel', 'initramfs'] as const;
  const first = DESCRIPTORS.memory;
  const all = Array.from<'ignore' | number>({ length: names.length }).fill('ignore');
  for (const name of names) all[DESCRIPTORS[name] - first] = files[name] ?? 'ignore';
  return all;
}

/**
 * When the host runs out of memory the kernel kills a VMM, that of a spot sandbox first, and not the service, which can
 * shut sandboxes down cleanly.
 */
export function setOomScore(pid: number, rank: keyof typeof OOM_SCORE_ADJ): void {
  try {
    writeFileSync(`/proc/${pid}/oom_score_adj`, String(OOM_SCORE_ADJ[rank]));
  } catch {
    // The process has ended already, which its owner reports.
  }
}
