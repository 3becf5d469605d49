/** The working directory of the image processes: what they read is put in, and what they made is taken out. */
import { constants } from 'node:fs';
import { chmod, chown, link, mkdir, open, rename } from 'node:fs/promises';
import path from 'node:path';
import { ImageError } from './image-error.ts';

/** An empty folder in `work` that belongs to the user of image processes. Its parent need not be accessible to them. */
export async function makeJail(work: string, uid: number): Promise<string> {
  const jail = path.join(work, 'jail');
  await mkdir(jail, { mode: 0o700 });
  await chown(jail, uid, uid);
  return jail;
}

/** Puts a file of ours in, which the processes can only read. It lies on the same file system, as all of the cache does. */
export async function putIn(jail: string, name: string, file: string): Promise<void> {
  await chmod(file, 0o444);
  await link(file, path.join(jail, name));
}

/**
 * Moves a file out that the processes, which have ended, made. It is ours then, and read-only.
 * @param durable it is on disk afterwards
 * @returns its size
 */
export async function takeOut(jail: string, name: string, target: string, durable: boolean): Promise<number> {
  const made = path.join(jail, name);
  // A link instead of a file would lead elsewhere, a second name would leave them a way in.
  await using file = await open(made, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  const facts = await file.stat();
  if (!facts.isFile() || facts.nlink !== 1) {
    throw new ImageError('failed', `an image process left ${name}, which is not a plain file`);
  }
  await file.chown(0, 0);
  await file.chmod(0o444);
  if (durable) await file.sync();
  await rename(made, target);
  return facts.size;
}
