import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import type { Logger } from 'pino';

/** A HAProxy in a namespace of processes of its own, which ends with it. */
export interface Haproxy {
  /** Resolves with the reason when it has ended. */
  ended: Promise<string>;
  kill(): Promise<void>;
}

/**
 * Starts HAProxy. Its first process has no privileges to lose and gets SIGKILL when this process ends, and the kernel
 * ends its worker, which has another user, with the namespace.
 */
export function startHaproxy(config: string, log: Logger): Haproxy {
  // A core dump would have credentials in it.
  const command = ['prlimit', '--core=0', '--', 'haproxy', '-W', '-db', '-f', config];
  const child = spawn(
    'setpriv',
    ['--pdeathsig', 'KILL', '--', 'unshare', '--pid', '--fork', '--kill-child=KILL', '--', ...command],
    {
      stdio: ['ignore', 'pipe', 'pipe'],
      cwd: '/',
      env: {
        PATH: `${process.env['PATH'] ?? ''}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin`,
        LC_ALL: 'C',
      },
      detached: true,
    },
  );
  let last = '';
  for (const stream of [child.stdout, child.stderr])
    createInterface({ input: stream }).on('line', (line) => {
      if (/^\[(ALERT|WARNING)\]|^Fatal/.test(line)) {
        last = line;
        log.warn(line);
      } else log.debug(line);
    });
  const ended = new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('close', (code, signal) => resolve(last === '' ? `ended with ${signal ?? code}` : last));
  });
  return { ended, kill: () => kill(child) };
}

/** Its first process, so that its parent outlives it and no zombie remains. */
async function kill(child: ChildProcess): Promise<void> {
  const { pid } = child;
  if (pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, 'exit');
  const text = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8').catch(() => '');
  const first = Number(text.trim().split(' ')[0]);
  try {
    if (first > 0) process.kill(first, 'SIGKILL');
    else child.kill('SIGKILL');
  } catch {
    // It has just ended.
  }
  const timer = setTimeout(() => child.kill('SIGKILL'), 2_000);
  await exited;
  clearTimeout(timer);
}
