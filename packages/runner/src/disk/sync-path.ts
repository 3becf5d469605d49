import { open } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { Semaphore } from '../budget/semaphore.ts';

/** An fsync of gigabytes holds a thread of Node's pool for seconds, and every file operation of the runner needs one. */
const large = new Semaphore(2);

/** Brings a small file's content, or a folder's names, to stable storage (fsync(2)). */
export async function syncPath(path: string): Promise<void> {
  const file = await open(path, 'r');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

/** The same of a file of any size: few at a time. */
export async function syncLarge(path: string): Promise<void> {
  await large.run(() => syncPath(path));
}

/** The content of an open file of any size (fdatasync(2)): few at a time. */
export async function syncLargeData(file: FileHandle): Promise<void> {
  await large.run(() => file.datasync());
}
