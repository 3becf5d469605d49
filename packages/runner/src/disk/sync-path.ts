import { open } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { Semaphore } from '../budget/semaphore.ts';

/** An fsync of gigabytes occupies a thread of Node's pool for seconds, and every file operation of the runner needs one. */
const large = new Semaphore(2);

/** Fsyncs a small file or a folder (fsync(2)). */
export async function syncPath(path: string): Promise<void> {
  const file = await open(path, 'r');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

/** Fsyncs a file of any size; limited concurrency. */
export async function syncLarge(path: string): Promise<void> {
  await large.run(() => syncPath(path));
}

/** Syncs the data of an open file of any size (fdatasync(2)); limited concurrency. */
export async function syncLargeData(file: FileHandle): Promise<void> {
  await large.run(() => file.datasync());
}
