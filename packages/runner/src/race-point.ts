import { closeSync, openSync } from 'node:fs';

/**
 * Names one step of an operation, so that a test can make the process die exactly there. Set
 * `RELEAP_CRASH_AT=<name>=<marker file>`: the first process to get there creates the marker and kills itself
 * with SIGKILL; those that follow find the marker and go on. Without the variable this does nothing.
 */
export function racePoint(name: string): void {
  const wanted = process.env['RELEAP_CRASH_AT'];
  if (wanted === undefined || !wanted.startsWith(`${name}=`)) return;
  try {
    closeSync(openSync(wanted.slice(name.length + 1), 'wx'));
  } catch {
    return;
  }
  process.kill(process.pid, 'SIGKILL');
  // The signal is taken when the kernel next looks; nothing may happen in between.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
}
