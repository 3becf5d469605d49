import { rm } from 'node:fs/promises';
import { bytesOf } from './image-files.ts';
import type { ImageFolder } from './image-folder.ts';
import type { ImageLimits } from './image-limits.ts';

/** An image asked for within this time is in use for all we know: its user may be another process. */
export const IMAGE_GRACE_MS = 15 * 60_000;

/**
 * Removes the least recently used images and layers until both keep within their bounds. What is leased, was wanted
 * within the grace period, is linked from elsewhere, pinned or built in stays, even over the bound.
 */
export async function collectGarbage(
  folder: ImageFolder,
  limits: Pick<ImageLimits, 'cacheBytes' | 'layerBytes'>,
  isLeased: (digest: string) => boolean,
): Promise<{ images: number; layers: number; bytes: number }> {
  const freed = { images: 0, layers: 0, bytes: 0 };
  const before = Date.now() - IMAGE_GRACE_MS;

  let images = (await folder.list()).toSorted((a, b) => a.usedMs - b.usedMs);
  let held = bytesOf(images);
  if (held > limits.cacheBytes) {
    const builtins = await folder.builtins();
    for (const image of images) {
      if (held <= limits.cacheBytes) break;
      const isInUse = image.linked || image.usedMs > before || isLeased(image.digest);
      if (isInUse || image.pinned || builtins.has(image.digest)) continue;
      if (!(await folder.discard(image.digest, before))) continue;
      images = images.filter((other) => other !== image);
      const left = bytesOf(images);
      freed.images += 1;
      freed.bytes += held - left;
      held = left;
    }
  }

  // A pull that uses a layer has a name of its own for it, and so has an image: it counts there.
  await folder.layers.sweep();
  const unused = (await folder.layers.list()).filter(({ linked }) => !linked);
  let stored = unused.reduce((sum, layer) => sum + layer.sizeBytes, 0);
  for (const layer of unused.toSorted((a, b) => a.usedMs - b.usedMs)) {
    if (stored <= limits.layerBytes) break;
    await rm(layer.path, { force: true });
    stored -= layer.sizeBytes;
    freed.layers += 1;
    freed.bytes += layer.sizeBytes;
  }
  return freed;
}
