/** Writes a merged tree as the read-only root image that guests mount, or as the head of one. */
import { open, rm } from 'node:fs/promises';
import { toImageError } from './image-error.ts';
import type { StackPlan } from './image-stack.ts';
import type { MergedImage } from './oci-flatten.ts';
import { writeSquashfs } from './squashfs/write-squashfs.ts';

/**
 * Writes `merged` to `target`, which must not exist. The caller makes it durable.
 * @param onProgress bytes written so far, of about how many
 * @param stack writes the head of a stacked image
 * @returns its size in bytes
 * @throws ImageError; `target` is removed then
 */
export async function writeRootImage(
  merged: MergedImage,
  target: string,
  onProgress?: (done: number, total: number) => void,
  stack?: StackPlan,
): Promise<number> {
  await using file = await open(target, 'wx', 0o644);
  try {
    const onBytes = (done: number): void => onProgress?.(done, merged.bytes);
    return await writeSquashfs(merged.root, merged.readLayer, file.fd, onBytes, stack);
  } catch (error) {
    await rm(target, { force: true });
    throw toImageError(error, 'writing the root image');
  }
}
