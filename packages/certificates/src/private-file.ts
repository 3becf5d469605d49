import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { link, mkdir, open, readFile, rename, rm } from 'node:fs/promises';
import path from 'node:path';

/** Writes a file that only its owner may read, in one step: a reader sees the old text or the new one. */
export async function writePrivateFile(file: string, text: string): Promise<void> {
  const partial = await writePartial(file, text);
  try {
    await rename(partial, file);
    await syncFolder(path.dirname(file));
  } finally {
    await rm(partial, { force: true });
  }
}

/**
 * Makes a file that only its owner may read, unless it exists: then its folder may be read-only. Of several that make it at once, one wins.
 * @returns whether this one has made it
 */
export async function makePrivateFile(file: string, text: string): Promise<boolean> {
  if (existsSync(file)) return false;
  await mkdir(path.dirname(file), { recursive: true, mode: 0o700 });
  const partial = await writePartial(file, text);
  try {
    const isMade = await link(partial, file).then(
      () => true,
      (error: NodeJS.ErrnoException) => {
        if (error.code !== 'EEXIST') throw error;
        return false;
      },
    );
    await syncFolder(path.dirname(file));
    return isMade;
  } finally {
    await rm(partial, { force: true });
  }
}

async function writePartial(file: string, text: string): Promise<string> {
  const partial = `${file}.${randomUUID()}.partial`;
  const handle = await open(partial, 'wx', 0o600);
  try {
    await handle.writeFile(text);
    await handle.sync();
  } finally {
    await handle.close();
  }
  return partial;
}

async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** The text of a file; undefined if there is none. */
export async function readIfThere(file: string): Promise<string | undefined> {
  return await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
}
