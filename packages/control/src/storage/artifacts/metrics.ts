import { queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { Counter, type Registry } from 'prom-client';
import { cachedSource, sourceGauge } from '../../platform/metrics/scraped.ts';

interface StoreRow {
  blobs: number;
  bytes: number;
  /** Artifacts that are being transferred. */
  uploads: number;
  fetches: number;
  /** Artifacts that are to be copied into stores of regions, and those of them whose last attempt failed. */
  replications: number;
  failing: number;
  /** Age of the oldest transfer, in seconds. */
  lag: number;
}

const STORE = statement<StoreRow>(
  'metrics-store',
  `select s.blobs, s.bytes, t.uploads, t.fetches, t.replications, t.failing, t.lag from (
     select count(*)::integer as blobs, coalesce(sum(bytes), 0)::double precision as bytes from blobs where stored_at is not null
   ) s, (
     select count(*) filter (where desired = 'stored')::integer as uploads,
            count(*) filter (where desired = 'present' and runner_id is not null)::integer as fetches,
            count(*) filter (where store_id is not null)::integer as replications,
            count(*) filter (where store_id is not null and error is not null)::integer as failing,
            coalesce(extract(epoch from now() - min(case when store_id is null then updated_at else created_at end)), 0)::double precision as lag
       from artifact_locations where desired = 'stored' or (desired = 'present' and status = 'pending')
   ) t`,
);

export type ReplicationCounter = Counter<'outcome'>;

export function replicationCounter(): ReplicationCounter {
  return new Counter({
    name: 'releap_artifact_replications_total',
    help: 'Copies of artifacts into stores of regions that have ended on this server',
    labelNames: ['outcome'],
    registers: [],
  });
}

export function storeMetrics(
  registry: Registry,
  { pool }: Database,
  replicated: ReplicationCounter,
  log: Logger,
): void {
  const source = cachedSource(log, () => queryOne(pool, STORE));
  const add = (name: string, help: string, read: (row: StoreRow) => number): void =>
    sourceGauge(registry, source, name, help, read);
  add('releap_store_blobs', 'Blobs in the store of the deployment', ({ blobs }) => blobs);
  add('releap_store_bytes', 'Bytes of the blobs in the store of the deployment', ({ bytes }) => bytes);
  add('releap_artifact_uploads', 'Artifacts that hosts are to upload', ({ uploads }) => uploads);
  add('releap_artifact_fetches', 'Artifacts that hosts are to fetch', ({ fetches }) => fetches);
  add(
    'releap_artifact_lag_seconds',
    'Age of the oldest upload, fetch or replication of an artifact that has not ended',
    ({ lag }) => lag,
  );
  add(
    'releap_artifact_replications',
    'Artifacts that are to be copied into stores of regions',
    ({ replications }) => replications,
  );
  add(
    'releap_artifact_replications_failing',
    'Those of them whose last attempt has failed',
    ({ failing }) => failing,
  );
  registry.registerMetric(replicated);
}
