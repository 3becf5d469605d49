import type { Registry } from 'prom-client';
import type { ImageStore } from '../image/image-store.ts';
import type { ImageStats } from '../image/image-store-options.ts';
import { labelledGauge } from './labelled.ts';

/** Metrics of the image cache. docs/observability.md lists them. */
export function imageMetrics(registry: Registry, images: Pick<ImageStore, 'stats'>): void {
  const gauge = (
    name: string,
    help: string,
    label: string,
    values: (stats: ImageStats) => Record<string, number>,
  ): void => labelledGauge(registry, name, help, label, async () => values(await images.stats()));
  gauge('releap_image_cache_bytes', 'Bytes of root images and of unpacked layers', 'kind', (stats) => ({
    image: stats.images.bytes,
    layer: stats.layers.bytes,
  }));
  gauge('releap_image_cache_max_bytes', 'Bytes to which the cache is kept', 'kind', (stats) => ({
    image: stats.images.mostBytes,
    layer: stats.layers.mostBytes,
  }));
  gauge('releap_image_cache_items', 'Root images and unpacked layers in the cache', 'kind', (stats) => ({
    image: stats.images.count,
    layer: stats.layers.count,
  }));
  gauge('releap_image_pulls', 'Pulls that fetch, or wait for their turn', 'state', ({ pulls }) => ({
    ...pulls,
  }));
}
