import type { Artifacts } from '../../storage/artifacts/artifacts.ts';
import type { Billing } from '../../tenancy/billing/billing.ts';
import type { BlobStore } from '../../storage/artifacts/blob-store.ts';
import type { BuildQueue } from '../../storage/images/build-queue.ts';
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { Lifecycle } from '../../compute/sandboxes/lifecycle.ts';
import type { Logger } from 'pino';
import type { PlatformLimits } from '@releap/contract';
import type { ReadImage } from '../../storage/images/resolve-root.ts';
import type { Regions } from '../../fleet/regions/regions.ts';
import type { Scheduler } from '../../compute/scheduler/scheduler.ts';
import type { Snapshots } from '../../compute/snapshots/snapshots.ts';
import type { Module } from '../../platform/module.ts';
import { deleteSuperseded, followBuilds } from './builds.ts';
import { removeDeleted } from './delete.ts';
import { functionTeardown } from './teardown.ts';
import { functionRoutes } from './routes.ts';
import { createVersionStates } from './version-states.ts';

/** How often all functions are searched for images of replaced versions that a change has missed. */
const SUPERSEDED_MS = 3_600_000;
/** How often deleted functions are looked at. */
const DELETED_MS = 30_000;

export interface FunctionsModuleOptions {
  artifacts: Artifacts;
  billing: Billing;
  blobs: BlobStore;
  builds: BuildQueue;
  database: Database;
  events: EventBus;
  lifecycle: Lifecycle;
  limits: { buildContextBytes: number; functionWindowMaxS: number; sweepMs: number; teardownGraceMs: number };
  log: Logger;
  platform: PlatformLimits;
  readImage: ReadImage;
  regions: Regions;
  scheduler: Scheduler;
  snapshots: Snapshots;
}

export function functionsModule(context: FunctionsModuleOptions): Module {
  const { database, events, limits, log } = context;
  const states = createVersionStates(database, events);
  events.on('functions-changed', (ids) => {
    deleteSuperseded(context, ids).catch((error: unknown) =>
      log.warn({ err: error }, 'images of replaced versions were not deleted; trying later'),
    );
  });
  return {
    name: 'functions',
    routes: (planes) => functionRoutes(planes, context),
    tasks: [
      {
        name: 'function-builds',
        everyMs: limits.sweepMs,
        leased: true,
        run: () => followBuilds(context, states),
      },
      {
        name: 'function-images',
        everyMs: SUPERSEDED_MS,
        leased: true,
        run: () => deleteSuperseded(context),
      },
      {
        name: 'function-deletions',
        everyMs: DELETED_MS,
        leased: true,
        run: () => removeDeleted(context),
      },
    ],
    teardown: functionTeardown(context),
  };
}
