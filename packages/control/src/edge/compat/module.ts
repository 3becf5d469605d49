import type { Artifacts } from '../../storage/artifacts/artifacts.ts';
import type { Billing } from '../../tenancy/billing/billing.ts';
import type { BuildQueue } from '../../storage/images/build-queue.ts';
import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { Database } from '@releap/database';
import type { HostClient } from '../../fleet/runners/host-client.ts';
import type { Lifecycle } from '../../compute/sandboxes/lifecycle.ts';
import type { StateDeadlines } from '../../compute/sandboxes/transitions.ts';
import type { Overcommit } from '../../compute/scheduler/overcommit.ts';
import type { PlatformLimits } from '@releap/contract';
import type { PreviewTokens } from '../endpoints/preview-tokens.ts';
import type { ReadImage } from '../../storage/images/resolve-root.ts';
import type { ReadRecord } from '../../compute/sandboxes/queries.ts';
import type { HardwareClasses } from '../../fleet/classes/hardware-classes.ts';
import type { Regions } from '../../fleet/regions/regions.ts';
import type { Scheduler } from '../../compute/scheduler/scheduler.ts';
import type { Snapshots } from '../../compute/snapshots/snapshots.ts';
import { queryAll, statement } from '@releap/database';
import type { Module } from '../../platform/module.ts';
import { batchStep } from '../../platform/teardown/step.ts';
import { compatPreviewRoutes } from './preview-routes.ts';
import { compatSandboxRoutes } from './sandbox-routes.ts';
import { compatSnapshotRoutes } from './snapshot-routes.ts';
import { unsupportedRoutes } from './unsupported-routes.ts';

/** Rows of creates that have failed, and of sandboxes that were purged. $1 rows */
const PURGE = statement<{ sandbox_id: string }>(
  'compat-purge',
  `delete from compat_sandboxes where sandbox_id in (
     select c.sandbox_id from compat_sandboxes c
      where c.created_at < now() - interval '1 hour' and not exists (select 1 from sandboxes s where s.id = c.sandbox_id)
      limit $1)
   returning sandbox_id`,
);
const PURGE_MS = 3_600_000;
const PURGE_ROWS = 1_000;

export interface CompatModuleOptions {
  artifacts: Artifacts;
  billing: Billing;
  builds: BuildQueue;
  changes: ChangeNotifier;
  database: Database;
  hosts: HostClient;
  lifecycle: Lifecycle;
  limits: { deadlines: StateDeadlines; overcommit: Overcommit; snapshotDeadlineMs: number };
  options: { compatSnapshot?: string | undefined; publicUrl?: string };
  platform: PlatformLimits;
  previewTokens: PreviewTokens;
  readImage: ReadImage;
  readRecord: ReadRecord;
  regions: Regions;
  classes: HardwareClasses;
  scheduler: Scheduler;
  snapshots: Snapshots;
}

/** The compatibility facade: the API in the wire protocol of another service (docs/compatibility.md). */
export function compatModule(context: CompatModuleOptions): Module {
  const { billing, database, options } = context;
  return {
    name: 'compat',
    routes(planes) {
      compatSandboxRoutes(planes, {
        ...context,
        defaultSnapshot: options.compatSnapshot,
        requireCredits: (orgId) => billing.requireCredits(orgId),
      });
      compatPreviewRoutes(planes, context);
      compatSnapshotRoutes(planes, { ...context, publicUrl: options.publicUrl });
      unsupportedRoutes(planes);
    },
    tasks: [
      {
        name: 'compat-purge',
        everyMs: PURGE_MS,
        leased: true,
        async run(signal) {
          while (
            !signal.aborted &&
            (await queryAll(database.pool, PURGE, [PURGE_ROWS])).length === PURGE_ROWS
          );
        },
      },
    ],
    teardown: [
      batchStep(database, {
        name: 'compat',
        phase: 'erase',
        text: `delete from compat_sandboxes
                where sandbox_id in (select sandbox_id from compat_sandboxes where project_id = $1 limit $2) returning 1`,
      }),
    ],
  };
}
