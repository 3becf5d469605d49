/** Runs a child in the foreground as if it were this process: its output, its signals, its exit code. */
import { spawn } from 'node:child_process';
import { constants } from 'node:os';

/**
 * @param {string} file
 * @param {string[]} args
 * @param {Record<string, string>} [env]
 * @returns {Promise<number>} exit code, 128 + n for a signal
 */
export function foreground(file, args, env = {}) {
  // A group of its own: the terminal would send Ctrl-C to the child as well, and it would be asked twice.
  const child = spawn(file, args, {
    stdio: 'inherit',
    env: { ...process.env, ...env },
    detached: !process.stdin.isTTY,
  });
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (code, signal) => resolve(code ?? 128 + (constants.signals[signal] ?? 0)));
  });
}
