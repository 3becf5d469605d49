import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { ClusterNotifier } from '../../platform/events/cluster-notifier.ts';
import type { Database } from '@releap/database';
import type { AssignmentChange, EventBus } from '../../platform/events/event-bus.ts';
import type { Logger } from 'pino';
import { purge } from '../../platform/retention/purge.ts';
import type { Module } from '../../platform/module.ts';
import { createVolumeKind } from './copies.ts';
import { eraseDeleted, volumeTeardown } from './erase.ts';
import { createVolumeMetrics } from './metrics.ts';
import { removeOldCommits } from './retention.ts';
import { volumeRoutes } from './routes.ts';
import { runnerVolumeRoutes } from './runner-routes.ts';
import { createVolumes } from './volumes.ts';

const GARBAGE_MS = 30_000;
const HISTORY_MS = 10 * 60_000;

/** Volumes whose content is erased. */
export const VOLUME_PURGE = purge(
  'volumes',
  `delete from volumes where id in (
       select v.id from volumes v
        where v.deleted_at < now() - $1 * interval '1 day' and v.erased_at is not null
          and not exists (select 1 from volume_attachments a where a.volume_id = v.id)
        order by v.deleted_at limit $2 for update skip locked)
     returning id`,
);

export interface VolumesModuleOptions {
  changes: ChangeNotifier;
  cluster: ClusterNotifier;
  database: Database;
  events: EventBus;
  limits: { blobGraceMs: number; volumeHistoryMs: number };
  log: Logger;
}

export function volumesModule(context: VolumesModuleOptions): Module {
  const { database, changes, cluster, events, limits, log } = context;
  const onChanged = (copies: readonly AssignmentChange[]): void => {
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
    purges: [VOLUME_PURGE],
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
