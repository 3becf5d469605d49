import { open, rename, rm } from 'node:fs/promises';
import { dirname } from 'node:path';

/** Writes a file with mode 0600 in one step, durably: a reader sees the old text or the new one. */
export async function writePrivateFile(file: string, text: string): Promise<void> {
  const partial = `${file}.${process.pid}.partial`;
  try {
    await using handle = await open(partial, 'w', 0o600);
    await handle.writeFile(text);
    await handle.sync();
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  }
  await rename(partial, file);
  await using folder = await open(dirname(file), 'r');
  await folder.sync();
}
