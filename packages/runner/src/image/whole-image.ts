import { chmod } from 'node:fs/promises';
import path from 'node:path';
import { syncLarge } from '../disk/sync-path.ts';
import { ImageError } from './image-error.ts';
import type { RootImage } from './image-files.ts';
import type { ImageFolder } from './image-folder.ts';
import { joinStack } from './image-stack.ts';

/**
 * Adds the one file with the content of a stacked image to its folder. What outlives the cache, or leaves this host, holds
 * that file: the disks of persistent sandboxes, snapshots, artifacts.
 * @param work a folder of our own
 */
export async function addWholeImage(
  folder: ImageFolder,
  work: string,
  { digest, parts, sizeBytes }: RootImage,
  signal: AbortSignal,
): Promise<void> {
  if (parts === undefined) return;
  const [head = '', ...layers] = parts;
  const file = path.join(work, 'whole');
  const bytes = await joinStack(head, layers, file, signal);
  if (bytes !== sizeBytes)
    throw new ImageError('failed', `the parts of ${digest} have ${bytes} bytes instead of ${sizeBytes}`);
  await chmod(file, 0o444);
  await syncLarge(file);
  await folder.addWhole(digest, file);
}
