import type { Artifacts } from './artifacts.ts';
import type { BlobStore } from './blob-store.ts';
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { Logger } from 'pino';
import type { Module } from '../../platform/module.ts';
import { createVolumeUploads } from '../volumes/uploads.ts';
import { blobAccess } from './blob-access.ts';
import { collectBlobGarbage } from './blob-garbage.ts';
import { storeMetrics } from './metrics.ts';
import { createArtifactKind } from './reconciled-kind.ts';
import { blobRoutes } from './routes.ts';

const HOUR_MS = 3_600_000;
const SWEEP_MS = 5_000;
const COLLECT_MS = 60_000;

export interface ArtifactsModuleOptions {
  artifacts: Artifacts;
  blobs: BlobStore;
  database: Database;
  events: EventBus;
  limits: { blobGraceMs: number; sweepMs: number };
  log: Logger;
}

export function artifactsModule(context: ArtifactsModuleOptions): Module {
  const { artifacts, blobs, database, events, limits, log } = context;
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
  return {
    name: 'artifacts',
    routes: (planes) => blobRoutes(planes, { blobs, access, volumes, want: (id) => artifacts.want(id) }),
    kinds: [createArtifactKind({ database, onChanged: (changes) => artifacts.announce(changes), log })],
    metrics: (registry) => storeMetrics(registry, database, log),
    tasks: [
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
          await collectBlobGarbage({ database, store: blobs, graceMs: limits.blobGraceMs, log }, signal);
        },
      },
    ],
  };
}
