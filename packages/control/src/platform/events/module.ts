import type { ChangeNotifier } from './change-notifier.ts';
import type { ClusterNotifier } from './cluster-notifier.ts';
import type { EventBus } from './event-bus.ts';
import type { Database } from '@releap/database';
import type { Module } from '../module.ts';

/** Well below the time after which other servers take this one for gone. */
const HEARTBEAT_MS = 5_000;
/**
 * How often requests that wait look again, and runners are told what they missed, while other servers are there. A net below the
 * notifications: these are repeated until they are sent, and their receiver knows when it may have missed some.
 */
const RECHECK_MS = 60_000;

export interface ClusterModuleOptions {
  changes: ChangeNotifier;
  cluster: ClusterNotifier;
  events: EventBus;
  heartbeats: Database;
  /** Those that are connected to this server. */
  runners: { resync(): Promise<void> };
}

/** Passes changes on to requests that wait here, and to the other servers. */
export function clusterModule({
  changes,
  cluster,
  events,
  heartbeats,
  runners,
}: ClusterModuleOptions): Module {
  const publish = (
    kind: string,
    rows: readonly {
      id: string;
      assigned_to_runner: boolean;
      runner_id: string | null;
      generation: number;
    }[],
  ): void => {
    changes.changed(rows.map((row) => row.id));
    cluster.publish(
      rows.map((row) => [row.id, row.assigned_to_runner ? row.runner_id : null, row.generation, kind]),
    );
  };
  events.on('sandboxes-changed', (rows) => publish('sandbox', rows));
  events.on('snapshots-changed', (rows) => publish('snapshot', rows));
  events.on('artifacts-changed', (rows) => publish('artifact', rows));
  events.on('volumes-changed', (rows) => publish('volume', rows));
  events.on('changed-elsewhere', (changed) => changes.changed(changed.map(([id]) => id)));
  events.on('notifications-missed', () => changes.changedAll());
  return {
    name: 'cluster',
    tasks: [
      {
        name: 'cluster-heartbeat',
        everyMs: HEARTBEAT_MS,
        leased: false,
        run: () => cluster.heartbeat(heartbeats.pool),
      },
      {
        name: 'cluster-recheck',
        everyMs: RECHECK_MS,
        leased: false,
        async run() {
          if (!cluster.hasPeers) return;
          changes.changedAll();
          await runners.resync();
        },
      },
    ],
  };
}
