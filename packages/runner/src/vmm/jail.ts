import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { HOSTD } from '../host/hostd.ts';

/** More than a sandbox of 64 virtual CPUs needs under KVM, with all layers and volumes that it may have: a test counts them. */
export const OPEN_FILES_MAX = 1024;
/** vCPU, I/O and migration threads: all processes of one slot's user. */
const THREADS_MAX = 512;

/** oom_score_adj, see proc(5): from -1000 (never killed) to 1000 (first). The service's own value is below 0. */
const OOM_SCORE_ADJ = { guaranteed: 500, spot: 800 } as const;

/** Of the root that `hostd jail` creates: the folder of the VMM's own files, and that of the files that it may use. */
export const JAILED_VMM = '/vmm';
export const JAILED_ROOT = '/vm';

/** A program to execute, with the first arguments and the environment that it needs. */
export interface Command {
  program: string;
  args: string[];
  env: Record<string, string>;
}

export interface LaunchOptions {
  /** With paths in the jail. */
  command: Command;
  /** Folder of the VMM. */
  vmmFolder: string;
  withKvm: boolean;
  /** Folder of the files that it may use, and its chroot. */
  root: string;
  /** Path of the network namespace, or `new` for an empty one that ends with the process. */
  netns: string;
  /** `cgroup.procs` files to join before the VMM is executed. */
  cgroupProcs: string[];
  /** Largest file that the VMM may write, in MiB. */
  fileMaxMib: number;
  /** Open file for standard output and error, which outlives this process. Bounded by `fileMaxMib`. */
  outputFd: number;
  /** Descriptors in this process of the files that it inherits, as those from 3 on. */
  files: readonly (number | undefined)[];
  /** What hostd opens for it as which descriptor: unix sockets to listen on and to connect to, and taps of its namespace. */
  opened: readonly { as: 'listen' | 'connect' | 'tap'; what: string; descriptor: number }[];
}

/**
 * Starts a VMM in a session of its own, so that it outlives the runner. It inherits only the listed descriptors, has no
 * access to the host's files but its own folders, and drops root before any guest code runs.
 */
export function launchVmm(options: LaunchOptions): ChildProcess {
  const { outputFd, command, files } = options;
  const child = spawn(HOSTD, ['jail', ...jailArguments(options), '--', command.program, ...command.args], {
    detached: true,
    cwd: '/',
    stdio: ['ignore', outputFd, outputFd, ...files.map((file) => file ?? ('ignore' as const))],
    env: { LC_ALL: 'C', ...command.env },
  });
  child.unref();
  if (child.pid !== undefined) setOomScore(child.pid, 'guaranteed');
  return child;
}

function jailArguments(options: LaunchOptions): string[] {
  const { vmmFolder, root, netns, cgroupProcs, fileMaxMib, withKvm, opened } = options;
  const values: [string, string | number][] = [
    ['program', vmmFolder],
    ['folder', root],
    ['netns', netns],
    ['nofile', OPEN_FILES_MAX],
    ['fsize-kib', fileMaxMib * 1024],
    ['nproc', THREADS_MAX],
  ];
  for (const file of cgroupProcs) values.push(['cgroup', file]);
  for (const { as, what, descriptor } of opened) values.push([as, `${what}=${descriptor}`]);
  const all = values.flatMap(([name, value]) => [`--${name}`, String(value)]);
  return withKvm ? ['--kvm', ...all] : all;
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
