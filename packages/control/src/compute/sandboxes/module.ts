import type { Artifacts } from '../../storage/artifacts/artifacts.ts';
import type { Billing } from '../../tenancy/billing/billing.ts';
import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { PullCredentials } from '../../storage/registries/pull-credentials.ts';
import type { Database } from '@releap/database';
import type { EgressRoot } from '../../fleet/egress/egress-root.ts';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { HostClient } from '../../fleet/runners/host-client.ts';
import type { Lifecycle } from './lifecycle.ts';
import type { StateDeadlines } from './transitions.ts';
import type { Overcommit } from '../scheduler/overcommit.ts';
import type { Logger } from 'pino';
import type { PlatformLimits } from '@releap/contract';
import type { ReadImage } from '../../storage/images/resolve-root.ts';
import type { ReadRecord } from './queries.ts';
import type { HardwareClasses } from '../../fleet/classes/hardware-classes.ts';
import type { Regions } from '../../fleet/regions/regions.ts';
import type { Scheduler } from '../scheduler/scheduler.ts';
import type { Snapshots } from '../snapshots/snapshots.ts';
import { purge } from '../../platform/retention/purge.ts';
import type { Module } from '../../platform/module.ts';
import { createAssignmentSecrets } from './assignment-secrets.ts';
import { endOverdue } from './deadlines.ts';
import { sandboxMetrics } from './metrics.ts';
import { leaseExpiry } from './leases.ts';
import { type CopyReports, createSandboxKind } from './reconciled-kind.ts';
import { objectStoreMountRoutes } from './object-store-mounts.ts';
import { releaseForkSources } from './pending-forks.ts';
import { sandboxRoutes } from './routes.ts';
import { sandboxTeardown } from './teardown.ts';

/** A full snapshot is restored with the secrets of the sandbox that it was taken of, so that stays. */
export const SANDBOX_PURGE = purge(
  'sandboxes',
  `with ended as (
       select s.id from sandboxes s
        where s.status = 'deleted' and not s.held and s.deleted_at < now() - $1 * interval '1 day'
          and not exists (select 1 from snapshots k where k.sandbox_id = s.id)
          and not exists (select 1 from sandbox_moves m where m.sandbox_id = s.id and m.copy_on is not null)
        order by s.deleted_at limit $2 for update skip locked
     ), secrets as (
       delete from sandbox_secrets where sandbox_id in (select id from ended)
     ), readings as (
       delete from cpu_readings where sandbox_id in (select id from ended)
     )
     delete from sandboxes where id in (select id from ended) returning id`,
);

export interface SandboxesModuleOptions {
  artifacts: Artifacts;
  billing: Billing;
  changes: ChangeNotifier;
  credentials: PullCredentials;
  database: Database;
  egressRoot: EgressRoot;
  events: EventBus;
  hosts: HostClient;
  lifecycle: Lifecycle;
  limits: { deadlines: StateDeadlines; leaseGraceMs: number; overcommit: Overcommit; sweepMs: number };
  log: Logger;
  moves: CopyReports;
  platform: PlatformLimits;
  readImage: ReadImage;
  readRecord: ReadRecord;
  regions: Regions;
  classes: HardwareClasses;
  scheduler: Scheduler;
  snapshots: Snapshots;
}

export function sandboxesModule(context: SandboxesModuleOptions): Module {
  const { billing, limits } = context;
  return {
    name: 'sandboxes',
    purges: [SANDBOX_PURGE],
    metrics: (registry) => sandboxMetrics(registry, context.database, context.log),
    routes(planes) {
      sandboxRoutes(planes, { ...context, requireCredits: (orgId) => billing.requireCredits(orgId) });
      objectStoreMountRoutes(planes, context);
    },
    tasks: [
      {
        name: 'pending-forks',
        everyMs: limits.sweepMs,
        leased: true,
        run: () =>
          releaseForkSources(context.database, (event, rows) => context.lifecycle.apply(event, rows)),
      },
      { name: 'sandbox-deadlines', everyMs: limits.sweepMs, leased: true, run: () => endOverdue(context) },
      { name: 'sandbox-leases', everyMs: limits.sweepMs, leased: true, run: leaseExpiry(context) },
    ],
    teardown: sandboxTeardown(context),
    kinds: [
      createSandboxKind({
        ...context,
        secrets: createAssignmentSecrets(context.database, context.egressRoot, context.log),
        onCapacityReleased: () => context.events.emit('capacity-released'),
      }),
    ],
  };
}
