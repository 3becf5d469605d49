/** Runs a child in the foreground as if it were this process: its output, its signals, its exit code. */
import { spawn } from 'node:child_process';
import { constants } from 'node:os';
import { fileURLToPath } from 'node:url';

// The JavaScript of TypeScript files is kept from process to process: each starts sooner, and without the compiler, which
// takes 25 MB.
const COMPILE_CACHE = fileURLToPath(new URL('../build/node-compile-cache', import.meta.url));

/**
 * The child stays in our process group, so that a kill of the group reaches it too; so it may receive a Ctrl-C
 * twice, from the terminal and from us. The channel tells it when we have ended without a message.
 *
 * @param {string} file
 * @param {string[]} args
 * @param {Record<string, string>} [env]
 * @param {() => void} [onStarted] called once, when the child says that it has started
 * @returns {Promise<number>} exit code, 128 + n for a signal
 */
export function foreground(file, args, env = {}, onStarted = () => undefined) {
  const stdio = ['inherit', 'inherit', 'inherit', 'ipc'];
  const child = spawn(file, args, {
    stdio,
    env: { NODE_COMPILE_CACHE: COMPILE_CACHE, ...process.env, ...env },
  });
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));
  // See ProcessMessage of packages/server/src/supervisor/messages.ts.
  let started = false;
  child.on('message', (message) => {
    if (started || message?.type !== 'started') return;
    started = true;
    onStarted();
  });
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (code, signal) => resolve(code ?? 128 + (constants.signals[signal] ?? 0)));
  });
}
