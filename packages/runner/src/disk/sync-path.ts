import { open } from 'node:fs/promises';

/** Brings a file's content, or a folder's names, to the platters (fsync(2)). */
export async function syncPath(path: string): Promise<void> {
  const file = await open(path, 'r');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}
