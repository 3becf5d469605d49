import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { HOSTD } from '../host/hostd.ts';
import { DESCRIPTORS, JAILED_VMM, SOCKETS } from './places.ts';
import { vmmCommand } from './vmm-store.ts';

/** Three sockets, three disks with their chains, tap, memory, state, event and timer descriptors: far below this. */
const OPEN_FILES_MAX = 256;
/** Processors, I/O and migration threads, copy-on-write clones: all that one slot's user has. */
const THREADS_MAX = 512;

/** See oom_score_adj in proc(5): from -1000 (never) to 1000 (first). The service's own is below 0. */
const OOM_SCORE_ADJ = { guaranteed: 500, spot: 800 } as const;

export interface LaunchOptions {
  /** Folder of the VMM. */
  vmmFolder: string;
  /** QEMU's own arguments, with the `JAILED` places. */
  args: string[];
  withKvm: boolean;
  /** Folder of the files that it may use; it is chrooted into that. */
  root: string;
  /** Folder of its sockets. */
  socketDir: string;
  /** Path of the network namespace, or `new` for an empty one that goes with the process. */
  netns: string;
  /** Name of its tap in there. */
  tap: string;
  /** `cgroup.procs` files to join before the VMM exists. */
  cgroupProcs: string[];
  /** Largest file that the VMM may write, in MiB. */
  fileMaxMib: number;
  /** What it prints goes here: an open file, so that it outlives us. Bounded by `fileMaxMib`. */
  outputFd: number;
  /** Our descriptors of the files that it opens. */
  files: Partial<Record<'memory' | 'state' | 'system' | 'kernel' | 'initramfs', number>>;
}

/**
 * Starts a VMM in a session of its own, so that it outlives the runner. It inherits nothing but what is listed, sees
 * nothing of the host but its own folders, and gives up root before any guest code runs.
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
 * When the host runs out of memory the kernel ends a VMM, that of a spot sandbox first, and not the service that could end
 * one in good order.
 */
export function setOomScore(pid: number, rank: keyof typeof OOM_SCORE_ADJ): void {
  try {
    writeFileSync(`/proc/${pid}/oom_score_adj`, String(OOM_SCORE_ADJ[rank]));
  } catch {
    // It has ended already, and whoever waits for it says how.
  }
}
