import type { Artifacts } from './artifacts.ts';
import type { BlobStore } from './blob-store.ts';
import { queryAll, type Database } from '@releap/database';
import type { Encryption } from '../../platform/encryption/encryption.ts';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { Logger } from 'pino';
import type { Module } from '../../platform/module.ts';
import { createVolumeUploads } from '../volumes/uploads.ts';
import { blobAccess } from './blob-access.ts';
import { collectBlobGarbage } from './blob-garbage.ts';
import { replicationCounter, storeMetrics } from './metrics.ts';
import { createReplications } from './replications.ts';
import { createRegionStores } from './region-stores.ts';
import { createArtifactKind } from './reconciled-kind.ts';
import { blobRoutes } from './routes.ts';
import { regionStoreRoutes } from './operator-routes.ts';
import { REMOVE_STORES } from './replica-statements.ts';
import type { ReplicationLimits } from './replications.ts';
import type { Stores } from './stores.ts';

const HOUR_MS = 3_600_000;
const SWEEP_MS = 5_000;
const COLLECT_MS = 60_000;

export interface ArtifactsModuleOptions {
  artifacts: Artifacts;
  blobs: BlobStore;
  stores: Stores;
  cleanup: AsyncDisposableStack;
  database: Database;
  encryption: Encryption;
  events: EventBus;
  limits: { blobGraceMs: number; sweepMs: number } & ReplicationLimits;
  log: Logger;
}

export function artifactsModule(context: ArtifactsModuleOptions): Module {
  const { artifacts, blobs, stores, cleanup, database, events, limits, log } = context;
  const access = blobAccess(database);
  const volumes = createVolumeUploads(database);
  events.on('snapshots-changed', (rows) => {
    const ready = rows.filter(
      ({ kind, owner_service: service, status }) =>
        (kind === 'disk' || service !== null) && status === 'ready',
    );
    if (ready.length === 0) return;
    artifacts
      .registerSnapshots(ready.map(({ id }) => id))
      .catch((error: unknown) => log.warn({ err: error }, 'snapshots were not registered; trying later'));
  });
  const replicated = replicationCounter();
  const replications = createReplications({
    database,
    stores,
    limits,
    onEnd: (outcome) => replicated.inc({ outcome }),
    log,
  });
  cleanup.defer(() => replications.close());
  events.on('replications-pending', () => replications.kick());
  return {
    name: 'artifacts',
    routes(planes) {
      const replicate = (id: string, region: string) => artifacts.replicate(id, region);
      blobRoutes(planes, { blobs, stores, access, volumes, replicate });
      regionStoreRoutes(planes, createRegionStores(context));
    },
    kinds: [
      createArtifactKind({
        database,
        onChanged: (changes) => artifacts.announce(changes),
        onStored: () => replications.kick(),
        log,
      }),
    ],
    metrics: (registry) => storeMetrics(registry, database, replicated, log),
    tasks: [
      // Not leased: a server renews its own claims.
      {
        name: 'replications',
        everyMs: limits.sweepMs,
        leased: false,
        run: () => replications.sweep(),
      },
      {
        name: 'artifacts',
        everyMs: Math.max(limits.sweepMs, Math.min(SWEEP_MS, limits.sweepMs * 5)),
        leased: true,
        run: () => artifacts.sweep(),
      },
      {
        name: 'artifact-garbage',
        everyMs: COLLECT_MS,
        leased: true,
        run: () => artifacts.collect('changed'),
      },
      { name: 'artifact-audit', everyMs: HOUR_MS, leased: true, run: () => artifacts.collect('all') },
      {
        name: 'blob-garbage',
        everyMs: HOUR_MS,
        timeoutMs: HOUR_MS,
        leased: true,
        async run(signal) {
          await collectAll(context, signal);
        },
      },
    ],
  };
}

/** A store that cannot be reached keeps no other from being cleaned. @throws when one could not be, after trying all */
async function collectAll(
  { database, stores, limits, log }: ArtifactsModuleOptions,
  signal: AbortSignal,
): Promise<void> {
  const failures: unknown[] = [];
  for (const id of await stores.ids()) {
    try {
      const { bare } = await stores.open(id);
      await collectBlobGarbage(
        { database, store: bare, storeId: id, graceMs: limits.blobGraceMs, log },
        signal,
      );
    } catch (error) {
      signal.throwIfAborted();
      failures.push(error);
    }
  }
  await queryAll(database.pool, REMOVE_STORES);
  if (failures.length > 0) throw new AggregateError(failures, `${failures.length} stores were not cleaned`);
}
