/** The modules of the control plane. A new resource gets its line here. */
import { artifactsModule } from './artifacts/module.ts';
import { authModule } from './auth/module.ts';
import { billingModule } from './billing/module.ts';
import { compatModule } from './compat/module.ts';
import type { ControlContext } from './context.ts';
import { credentialsModule } from './credentials/module.ts';
import { endpointsModule } from './endpoints/module.ts';
import { clusterModule } from './events/module.ts';
import { gatewaysModule } from './gateways/module.ts';
import { hostsModule } from './hosts/module.ts';
import { idempotencyModule } from './idempotency/module.ts';
import { imagesModule } from './images/module.ts';
import { jobsModule } from './jobs/module.ts';
import { managementModule } from './management/module.ts';
import { metricsModule } from './metrics/module.ts';
import type { Module } from './module.ts';
import { operatorModule } from './operator/module.ts';
import { regionsModule } from './regions/module.ts';
import { registriesModule } from './registries/module.ts';
import { retentionModule } from './retention/module.ts';
import { runnersModule } from './runners/module.ts';
import { sandboxesModule } from './sandboxes/module.ts';
import { schedulerModule } from './scheduler/module.ts';
import { secretsModule } from './secrets/module.ts';
import { serviceModule } from './service/module.ts';
import { snapshotsModule } from './snapshots/module.ts';
import { teardownModule } from './teardown/module.ts';
import { usageModule } from './usage/module.ts';

/** In the order in which they receive events: runners before waiting requests and other servers. */
const MODULES: readonly ((context: ControlContext) => Module)[] = [
  runnersModule,
  clusterModule,
  schedulerModule,
  hostsModule,
  operatorModule,
  authModule,
  credentialsModule,
  managementModule,
  // Snapshots before sandboxes: kinds are sent to a runner in this order, and a sandbox may be restored from a snapshot.
  snapshotsModule,
  artifactsModule,
  sandboxesModule,
  endpointsModule,
  imagesModule,
  compatModule,
  jobsModule,
  secretsModule,
  registriesModule,
  regionsModule,
  billingModule,
  usageModule,
  idempotencyModule,
  retentionModule,
  gatewaysModule,
  serviceModule,
  metricsModule,
];

export function createModules(context: ControlContext): Module[] {
  const modules = [...MODULES, ...(context.options.modules ?? [])].map((create) => create(context));
  return [
    ...modules,
    teardownModule(
      context,
      modules.flatMap((module) => module.teardown ?? []),
    ),
  ];
}
