import { bytesOf } from './image-files.ts';
import type { ImageFolder } from './image-folder.ts';
import type { ImageLimits } from './image-limits.ts';
import type { ImageStats } from './image-store-options.ts';

/** What the cache holds. A layer that an image has counts with the images. */
export async function cacheStats(
  folder: ImageFolder,
  limits: Pick<ImageLimits, 'cacheBytes' | 'layerBytes'>,
): Promise<Omit<ImageStats, 'pulls'>> {
  const [images, layers] = await Promise.all([folder.list(), folder.layers.list()]);
  const unused = layers.filter(({ linked }) => !linked);
  const layerBytes = unused.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
  return {
    images: { count: images.length, bytes: bytesOf(images), mostBytes: limits.cacheBytes },
    layers: { count: layers.length, bytes: layerBytes, mostBytes: limits.layerBytes },
  };
}
