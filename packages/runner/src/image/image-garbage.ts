import { rm } from 'node:fs/promises';
import type { ImageFolder } from './image-folder.ts';
import type { ImageLimits } from './image-limits.ts';

/** An image asked for within this time is in use for all we know: its user may be another process. */
export const IMAGE_GRACE_MS = 15 * 60_000;

/**
 * Removes the least recently used images and layers until both keep within their bounds. What is leased, was wanted
 * within the grace period, is linked from elsewhere or is built in stays, even over the bound.
 */
export async function collectGarbage(
  folder: ImageFolder,
  limits: Pick<ImageLimits, 'cacheBytes' | 'blobBytes' | 'pullMs' | 'makeMs'>,
  isLeased: (digest: string) => boolean,
): Promise<{ images: number; blobs: number; bytes: number }> {
  const freed = { images: 0, blobs: 0, bytes: 0 };
  const before = Date.now() - IMAGE_GRACE_MS;

  const images = (await folder.list()).toSorted((a, b) => a.usedMs - b.usedMs);
  let held = images.reduce((sum, image) => sum + image.sizeBytes, 0);
  if (held > limits.cacheBytes) {
    const pinned = await folder.pinned();
    for (const image of images) {
      if (held <= limits.cacheBytes) break;
      if (image.linked || image.usedMs > before || pinned.has(image.digest) || isLeased(image.digest))
        continue;
      if (!(await folder.discard(image.digest, before))) continue;
      held -= image.sizeBytes;
      freed.images += 1;
      freed.bytes += image.sizeBytes;
    }
  }

  // A pull marks the layers that it finds and then has so long until it has read them.
  const blobsBefore = Date.now() - limits.pullMs - limits.makeMs;
  const blobs = (await folder.listBlobs()).toSorted((a, b) => a.usedMs - b.usedMs);
  let stored = blobs.reduce((sum, blob) => sum + blob.sizeBytes, 0);
  for (const blob of blobs) {
    if (stored <= limits.blobBytes || blob.usedMs > blobsBefore) break;
    await rm(blob.path, { force: true });
    stored -= blob.sizeBytes;
    freed.blobs += 1;
    freed.bytes += blob.sizeBytes;
  }
  return freed;
}
