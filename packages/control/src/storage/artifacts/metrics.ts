import { queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { cachedSource, sourceGauge } from '../../platform/metrics/scraped.ts';

interface StoreRow {
  blobs: number;
  bytes: number;
  /** Artifacts that are being transferred. */
  uploads: number;
  fetches: number;
  /** Age of the oldest transfer, in seconds. */
  lag: number;
}

const STORE = statement<StoreRow>(
  'metrics-store',
  `select s.blobs, s.bytes, t.uploads, t.fetches, t.lag from (
     select count(*)::integer as blobs, coalesce(sum(bytes), 0)::double precision as bytes from blobs where stored_at is not null
   ) s, (
     select count(*) filter (where desired = 'stored')::integer as uploads,
            count(*) filter (where desired = 'present')::integer as fetches,
            coalesce(extract(epoch from now() - min(updated_at)), 0)::double precision as lag
       from artifact_locations where desired = 'stored' or (desired = 'present' and status = 'pending')
   ) t`,
);

export function storeMetrics(registry: Registry, { pool }: Database, log: Logger): void {
  const source = cachedSource(log, () => queryOne(pool, STORE));
  const add = (name: string, help: string, read: (row: StoreRow) => number): void =>
    sourceGauge(registry, source, name, help, read);
  add('releap_store_blobs', 'Blobs in the store of the deployment', ({ blobs }) => blobs);
  add('releap_store_bytes', 'Bytes of the blobs in the store of the deployment', ({ bytes }) => bytes);
  add('releap_artifact_uploads', 'Artifacts that hosts are to upload', ({ uploads }) => uploads);
  add('releap_artifact_fetches', 'Artifacts that hosts are to fetch', ({ fetches }) => fetches);
  add(
    'releap_artifact_lag_seconds',
    'Age of the oldest upload or fetch of an artifact that has not ended',
    ({ lag }) => lag,
  );
}
