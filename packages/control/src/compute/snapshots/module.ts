import type { ControlContext } from '../../context.ts';
import type { Module } from '../../platform/module.ts';
import { createSnapshotKind } from './reconciled-kind.ts';
import { snapshotRoutes } from './routes.ts';
import { snapshotTeardown } from './teardown.ts';

export function snapshotsModule(context: ControlContext): Module {
  const { snapshots, limits } = context;
  return {
    name: 'snapshots',
    routes: (planes) => snapshotRoutes(planes, context),
    tasks: [{ name: 'snapshots', everyMs: limits.sweepMs, leased: true, run: () => snapshots.sweep() }],
    teardown: [snapshotTeardown(context)],
    kinds: [createSnapshotKind(context.database, snapshots)],
  };
}
