import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { HOSTD } from '../host/hostd.ts';
import type { VmmCommand } from './vmm-store.ts';

/** Three sockets, three disks with their chains, tap, memory, state, event and timer descriptors: far below this. */
const OPEN_FILES_MAX = 256;
/** Processors, I/O and migration threads, copy-on-write clones: all that one slot's user has. */
const THREADS_MAX = 512;

/** See oom_score_adj in proc(5): from -1000 (never) to 1000 (first). The service's own is below 0. */
const OOM_SCORE_ADJ = { guaranteed: 500, spot: 800 } as const;

export interface LaunchOptions {
  command: VmmCommand;
  /** Its arguments after those of the command. */
  args: string[];
  /** Folder that it is chrooted into. */
  root: string;
  /** Path of the network namespace, or `new` for an empty one that goes with the process. */
  netns: string;
  /** `cgroup.procs` files to join before the VMM exists. */
  cgroupProcs: string[];
  /** Largest file that the VMM may write, in MiB. */
  fileMaxMib: number;
  /** What it prints goes here: an open file, so that it outlives us. Bounded by `fileMaxMib`. */
  outputFd: number;
  /** Descriptors that the VMM finds as 3, 4, … */
  inheritFds?: number[];
}

/**
 * Starts a VMM in a session of its own, so that it outlives the runner. It inherits nothing but what is listed, and
 * gives up root before any guest code runs.
 */
export function launchVmm(options: LaunchOptions): ChildProcess {
  const { root, netns, cgroupProcs, fileMaxMib, outputFd, inheritFds = [], command, args } = options;
  const child = spawn(
    HOSTD,
    [
      'jail',
      '--netns',
      netns,
      '--nofile',
      String(OPEN_FILES_MAX),
      '--fsize-kib',
      String(fileMaxMib * 1024),
      '--nproc',
      String(THREADS_MAX),
      '--root',
      root,
      ...cgroupProcs.flatMap((file) => ['--cgroup', file]),
      '--',
      command.program,
      ...command.args,
      ...args,
    ],
    {
      detached: true,
      cwd: '/',
      stdio: ['ignore', outputFd, outputFd, ...inheritFds],
      env: { LC_ALL: 'C', ...command.env },
    },
  );
  child.unref();
  if (child.pid !== undefined) setOomScore(child.pid, 'guaranteed');
  return child;
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
