import { queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { Gauge, type Registry } from 'prom-client';
import { cachedSource } from '../metrics/scraped.ts';

interface StoreRow {
  blobs: number;
  bytes: number;
}

const STORE = statement<StoreRow>(
  'metrics-store',
  `select count(*)::integer as blobs, coalesce(sum(bytes), 0)::double precision as bytes from blobs where stored_at is not null`,
);

export function storeMetrics(registry: Registry, { pool }: Database, log: Logger): void {
  const source = cachedSource(log, () => queryOne(pool, STORE));
  const add = (name: string, help: string, read: (row: StoreRow) => number): void => {
    registry.registerMetric(
      new Gauge({
        name,
        help,
        registers: [],
        async collect() {
          this.reset();
          const row = await source();
          if (row !== undefined) this.set(read(row));
        },
      }),
    );
  };
  add('releap_store_blobs', 'Blobs in the store of the deployment', ({ blobs }) => blobs);
  add('releap_store_bytes', 'Bytes of the blobs in the store of the deployment', ({ bytes }) => bytes);
}
