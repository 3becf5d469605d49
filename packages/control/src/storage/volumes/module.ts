import type { ControlContext } from '../../context.ts';
import type { Module } from '../../platform/module.ts';
import { createVolumeKind } from './copies.ts';
import type { CopyChange } from './copy-statements.ts';
import { eraseDeleted, volumeTeardown } from './erase.ts';
import { createVolumeMetrics } from './metrics.ts';
import { removeOldCommits } from './retention.ts';
import { volumeRoutes } from './routes.ts';
import { runnerVolumeRoutes } from './runner-routes.ts';
import { createVolumes } from './volumes.ts';

const GARBAGE_MS = 30_000;
const HISTORY_MS = 10 * 60_000;

export function volumesModule(context: ControlContext): Module {
  const { database, changes, cluster, events, limits, log } = context;
  const onChanged = (copies: readonly CopyChange[]): void => {
    if (copies.length > 0) events.emit('volumes-changed', copies);
  };
  /** Requests that wait for hosts may be on other servers. */
  const onReported = (ids: readonly string[]): void => {
    changes.changed(ids);
    cluster.publish(ids.map((id) => [id, null, 0, 'volume']));
  };
  const metrics = createVolumeMetrics(database, log);
  const { volumeHistoryMs } = limits;
  return {
    name: 'volumes',
    routes(planes) {
      const volumes = createVolumes({ database, onCopiesChanged: onChanged });
      volumeRoutes(planes, { database, changes, onChanged, volumes });
      runnerVolumeRoutes(planes, { database, metrics, onChanged });
    },
    metrics: (registry) => metrics.register(registry),
    kinds: [createVolumeKind({ database, onChanged, onReported, log })],
    tasks: [
      {
        name: 'volume-garbage',
        everyMs: GARBAGE_MS,
        leased: true,
        run: () => eraseDeleted(database, volumeHistoryMs, onChanged),
      },
      {
        name: 'volume-history',
        everyMs: HISTORY_MS,
        timeoutMs: HISTORY_MS,
        leased: true,
        run: (signal) =>
          removeOldCommits(database, { historyMs: volumeHistoryMs, uploadMs: limits.blobGraceMs }, signal),
      },
    ],
    teardown: [volumeTeardown(database, volumeHistoryMs, onChanged)],
  };
}
