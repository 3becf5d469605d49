import { Gauge, type Registry } from 'prom-client';
import type { ImageStore } from '../image/image-store.ts';
import type { ImageStats } from '../image/image-store-options.ts';

/** Metrics of the image cache. docs/observability.md lists them. */
export function imageMetrics(registry: Registry, images: Pick<ImageStore, 'stats'>): void {
  const gauge = (
    name: string,
    help: string,
    label: string,
    values: (stats: ImageStats) => Record<string, number>,
  ): Gauge =>
    new Gauge({
      name,
      help,
      labelNames: [label],
      registers: [registry],
      async collect() {
        for (const [key, value] of Object.entries(values(await images.stats())))
          this.set({ [label]: key }, value);
      },
    });
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
