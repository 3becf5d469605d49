import { unlinkSync } from 'node:fs';
import { join } from 'node:path';

/**
 * Names one step of an operation, so that a test can make the process die exactly there. Set
 * `RELEAP_CRASH_AT` to a folder: the process that reaches the step and finds a file of its name in there removes
 * the file and kills itself with SIGKILL; later processes continue. Without the variable this does nothing.
 */
export function failpoint(name: string): void {
  const folder = process.env['RELEAP_CRASH_AT'];
  if (folder === undefined) return;
  try {
    unlinkSync(join(folder, name));
  } catch {
    return;
  }
  process.kill(process.pid, 'SIGKILL');
  // The signal is taken when the kernel next looks; nothing may happen in between.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
}
