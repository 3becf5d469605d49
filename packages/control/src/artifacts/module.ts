import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import { blobAccess } from './blob-access.ts';
import { collectBlobGarbage } from './blob-garbage.ts';
import { storeMetrics } from './metrics.ts';
import { blobRoutes } from './routes.ts';

const HOUR_MS = 3_600_000;

export function artifactsModule({ blobs, database, limits, log }: ControlContext): Module {
  return {
    name: 'artifacts',
    routes: (planes) => blobRoutes(planes, { blobs, mayRead: blobAccess(database) }),
    metrics: (registry) => storeMetrics(registry, database, log),
    tasks: [
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
