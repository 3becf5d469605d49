import type { Billing } from '../../tenancy/billing/billing.ts';
import type { BlobStore } from '../artifacts/blob-store.ts';
import type { BuildQueue } from './build-queue.ts';
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { Logger } from 'pino';
import type { Regions } from '../../fleet/regions/regions.ts';
import { JOB_EVENTS } from '../../platform/lifecycle/jobs.ts';
import type { Module } from '../../platform/module.ts';
import { batchStep } from '../../platform/teardown/step.ts';
import { imageRoutes, type RegionChoice } from './routes.ts';
import { fails } from './build-statements.ts';

export interface ImagesModuleOptions {
  billing: Billing;
  blobs: BlobStore;
  builds: BuildQueue;
  database: Database;
  events: EventBus;
  limits: { buildContextBytes: number; sweepMs: number };
  log: Logger;
  regions: Regions;
  scheduler: RegionChoice;
}

export function imagesModule(context: ImagesModuleOptions): Module {
  const { builds, database, events, limits, log } = context;
  events.on('runner-ready', () => {
    builds.kick();
    builds
      .retryBuiltins()
      .catch((error: unknown) => log.error({ err: error }, 'built-in images could not be queued'));
  });
  return {
    name: 'images',
    routes: (planes) => imageRoutes(planes, context),
    kinds: [builds.kind],
    // Not leased: a server extends the leases of the builds whose runners are connected to it.
    tasks: [{ name: 'builds', everyMs: limits.sweepMs, leased: false, run: () => builds.sweep() }],
    teardown: [
      batchStep(database, {
        name: 'builds',
        phase: 'revoke',
        text: `update jobs set ${fails("'its project was deleted'")}
                where id in (select id from jobs where project_id = $1 and kind = 'build' and ${JOB_EVENTS.allows('jobs', 'fail')} limit $2)
               returning 1`,
      }),
      batchStep(database, {
        name: 'images',
        phase: 'erase',
        text: `delete from images where id in (select id from images where project_id = $1 limit $2) returning 1`,
      }),
    ],
  };
}
