import { spawn } from 'node:child_process';
import type { ChildProcess, SpawnOptions } from 'node:child_process';

/** `setpriv` and `prlimit` exit with this code when the program they are to execute does not exist. */
export const NOT_FOUND_CODE = 127;

export interface StartOptions extends Pick<SpawnOptions, 'stdio' | 'cwd'> {
  /** Default: `toolEnvironment()`. */
  env?: NodeJS.ProcessEnv | undefined;
  /** Largest file the program may write, bytes (RLIMIT_FSIZE); its write fails beyond. */
  fileMax?: number | undefined;
}

/**
 * Starts a program that never outlives this process: the kernel kills it when we end, however we end (PR_SET_PDEATHSIG).
 * It leads a process group of its own, so that `killGroup` reaches what it has started. No shell reads the arguments.
 * A VMM, which does outlive the runner, is started by `vmm/jail.ts`.
 */
export function startProcess(tool: string, args: readonly string[], options: StartOptions): ChildProcess {
  const { fileMax, env = toolEnvironment(), ...rest } = options;
  const limits = fileMax === undefined ? [] : ['prlimit', `--fsize=${Math.ceil(fileMax)}`, '--'];
  return spawn('setpriv', ['--pdeathsig', 'KILL', '--', ...limits, tool, ...args], {
    ...rest,
    env,
    detached: true,
  });
}

/** Kills the program and its process group. Does nothing once its leader has been reaped: the id may be another's. */
export function killGroup(child: ChildProcess): void {
  if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
  try {
    process.kill(-child.pid, 'SIGKILL');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
    // Between fork and setsid(2) there is no such group yet.
    child.kill('SIGKILL');
  }
}

/** Tools must print English, as a few messages are matched, and be found even with a short PATH. */
export function toolEnvironment(): NodeJS.ProcessEnv {
  return { PATH: `${process.env['PATH'] ?? ''}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin`, LC_ALL: 'C' };
}
