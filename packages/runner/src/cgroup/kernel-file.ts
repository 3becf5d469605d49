import { closeSync, openSync, readSync } from 'node:fs';

const buffer = Buffer.alloc(4096);

/**
 * The text of a file of procfs, sysfs or cgroupfs, at most 4 KiB; undefined when it cannot be read. Synchronous, because the
 * kernel makes it in memory: a read takes microseconds, and many times that through the thread pool.
 */
export function readKernelFile(path: string): string | undefined {
  let file: number;
  try {
    file = openSync(path, 'r');
  } catch {
    return undefined;
  }
  try {
    return buffer.toString('latin1', 0, readSync(file, buffer, 0, buffer.length, 0));
  } catch {
    return undefined;
  } finally {
    closeSync(file);
  }
}
