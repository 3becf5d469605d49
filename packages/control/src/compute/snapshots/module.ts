import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { Database } from '@releap/database';
import type { Snapshots } from './snapshots.ts';
import { purge } from '../../platform/retention/purge.ts';
import type { Module } from '../../platform/module.ts';
import { createSnapshotKind } from './reconciled-kind.ts';
import { snapshotRoutes } from './routes.ts';
import { snapshotTeardown } from './teardown.ts';

/** Before that of sandboxes, which stay until their snapshots are purged. */
export const SNAPSHOT_PURGE = purge(
  'snapshots',
  `delete from snapshots where id in (
       select id from snapshots
        where status in ('deleted', 'failed') and not held and updated_at < now() - $1 * interval '1 day'
        order by updated_at limit $2 for update skip locked)
     returning id`,
);

export interface SnapshotsModuleOptions {
  changes: ChangeNotifier;
  database: Database;
  limits: { snapshotDeadlineMs: number; sweepMs: number };
  snapshots: Snapshots;
}

export function snapshotsModule(context: SnapshotsModuleOptions): Module {
  const { snapshots, limits } = context;
  return {
    name: 'snapshots',
    purges: [SNAPSHOT_PURGE],
    routes: (planes) => snapshotRoutes(planes, context),
    tasks: [{ name: 'snapshots', everyMs: limits.sweepMs, leased: true, run: () => snapshots.sweep() }],
    teardown: [snapshotTeardown(context)],
    kinds: [createSnapshotKind(context.database, snapshots)],
  };
}
