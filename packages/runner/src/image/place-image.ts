import { chmod, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { syncLarge } from '../disk/sync-path.ts';
import { ImageError } from './image-error.ts';
import type { ImageFolder, StoredImage } from './image-folder.ts';

/**
 * Publishes an image of files that another host of the deployment has made.
 * @param work a folder of our own
 * @param files write the root image and its description to the given paths
 */
export async function placeImage(
  folder: ImageFolder,
  work: string,
  digest: string,
  files: Record<'root' | 'config', (path: string) => Promise<void>>,
): Promise<void> {
  const { dir, root } = await folder.imageIn(work);
  const config = join(work, 'fetched-config.json');
  await files.config(config);
  const stored = JSON.parse(await readFile(config, 'utf8')) as StoredImage;
  await files.root(root);
  const { size } = await stat(root);
  if (stored.version !== 1 || stored.digest !== digest || stored.sizeBytes !== size)
    throw new ImageError(
      'failed',
      `the stored image ${digest} is damaged: its description is of another one`,
    );
  await chmod(root, 0o444);
  await syncLarge(root);
  await folder.publish(dir, stored);
}
