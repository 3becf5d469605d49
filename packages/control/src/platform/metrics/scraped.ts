/** Values that are read when metrics are scraped. */
import { Gauge, type Registry } from 'prom-client';
import type { Logger } from 'pino';

/** Lifetime of a value from the database, in milliseconds. */
const CACHE_MS = 10_000;
/** Longest wait of a scrape for it. */
const PATIENCE_MS = 2_000;

/** A gauge whose value is in the memory of this server. */
export function gauge(registry: Registry, name: string, help: string, read: () => number): void {
  registry.registerMetric(
    new Gauge({
      name,
      help,
      registers: [],
      collect() {
        this.set(read());
      },
    }),
  );
}

/** A gauge of a value of a source; it has no line while the source has none. */
export function sourceGauge<T>(
  registry: Registry,
  source: () => Promise<T | undefined>,
  name: string,
  help: string,
  read: (value: T) => number,
): void {
  registry.registerMetric(
    new Gauge({
      name,
      help,
      registers: [],
      async collect() {
        this.reset();
        const value = await source();
        if (value !== undefined) this.set(read(value));
      },
    }),
  );
}

/**
 * A source of values that costs a query: at most one query in 10 s, one at a time, for any number of scrapers. A scrape
 * waits for it for at most 2 s and gets undefined when it is late or fails.
 */
export function cachedSource<T>(log: Logger, load: () => Promise<T>): () => Promise<T | undefined> {
  let value: T | undefined;
  let loadedAt = -Infinity;
  let loading: Promise<T | undefined> | undefined;
  return async () => {
    if (performance.now() - loadedAt < CACHE_MS) return value;
    loading ??= load()
      .catch((error: unknown) => {
        log.warn({ err: error }, 'a metric could not be read from the database');
        return undefined;
      })
      .then((loaded) => {
        value = loaded;
        loadedAt = performance.now();
        loading = undefined;
        return loaded;
      });
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<undefined>((resolve) => {
      timer = setTimeout(() => resolve(undefined), PATIENCE_MS);
    });
    try {
      return await Promise.race([loading, late]);
    } finally {
      clearTimeout(timer);
    }
  };
}
