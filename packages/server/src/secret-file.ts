import { randomBytes, randomUUID } from 'node:crypto';
import { link, mkdir, open, readFile, rename, rm } from 'node:fs/promises';
import path from 'node:path';

const TOKEN = /^[A-Za-z0-9_-]{43,}$/;

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

/** The token by which the processes of one installation know each other; made when there is none. */
export async function readOrMakeToken(file: string): Promise<string> {
  const present = await readToken(file);
  if (present !== undefined) return present;
  await mkdir(path.dirname(file), { recursive: true, mode: 0o700 });
  const partial = await writePartial(file, `${randomBytes(32).toString('base64url')}\n`);
  try {
    // link(2) fails when another process was first; then both use that one's token.
    await link(partial, file).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'EEXIST') throw error;
    });
    await syncFolder(path.dirname(file));
  } finally {
    await rm(partial, { force: true });
  }
  const made = await readToken(file);
  if (made === undefined) throw new Error(`${file} vanished`);
  return made;
}

async function readToken(file: string): Promise<string | undefined> {
  const text = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  if (text === undefined) return undefined;
  if (!TOKEN.test(text.trim()))
    throw new Error(`${file} holds no token: it needs at least 43 characters of A-Z a-z 0-9 _ -`);
  return text.trim();
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
