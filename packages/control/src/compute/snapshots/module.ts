import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { Database } from '@releap/database';
import type { Snapshots } from './snapshots.ts';
import type { Module } from '../../platform/module.ts';
import { createSnapshotKind } from './reconciled-kind.ts';
import { snapshotRoutes } from './routes.ts';
import { snapshotTeardown } from './teardown.ts';

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
    routes: (planes) => snapshotRoutes(planes, context),
    tasks: [{ name: 'snapshots', everyMs: limits.sweepMs, leased: true, run: () => snapshots.sweep() }],
    teardown: [snapshotTeardown(context)],
    kinds: [createSnapshotKind(context.database, snapshots)],
  };
}
