/** The modules of the control plane. A new resource gets its line here. */
import { artifactsModule } from './artifacts/module.ts';
import { authModule } from './auth/module.ts';
import { billingModule } from './billing/module.ts';
import { compatModule } from './compat/module.ts';
import type { ControlContext } from './context.ts';
import { credentialsModule } from './credentials/module.ts';
import { endpointsModule } from './endpoints/module.ts';
import { clusterModule } from './events/module.ts';
import { functionsModule } from './functions/module.ts';
import { functionIngressModule } from './functions/ingress/module.ts';
import { functionInstancesModule } from './functions/instances/module.ts';
import { functionTemplatesModule } from './functions/templates/module.ts';
import { gatewaysModule } from './gateways/module.ts';
import { hostsModule } from './hosts/module.ts';
import { idempotencyModule } from './idempotency/module.ts';
import { imagesModule } from './images/module.ts';
import { gatewayRecordsModule } from './invocations/gateway-records.ts';
import { invocationLogModule } from './invocations/log-module.ts';
import { invocationsModule } from './invocations/module.ts';
import { jobsModule } from './jobs/module.ts';
import { managementModule } from './management/module.ts';
import { metricsModule } from './metrics/module.ts';
import type { Module } from './module.ts';
import { objectStoresModule } from './object-stores/module.ts';
import { operatorModule } from './operator/module.ts';
import { quotasModule } from './quotas/module.ts';
import { regionsModule } from './regions/module.ts';
import { registriesModule } from './registries/module.ts';
import { retentionModule } from './retention/module.ts';
import { runnersModule } from './runners/module.ts';
import { sandboxesModule } from './sandboxes/module.ts';
import { schedulerModule } from './scheduler/module.ts';
import { schedulesModule } from './schedules/module.ts';
import { secretsModule } from './secrets/module.ts';
import { serviceModule } from './service/module.ts';
import { snapshotsModule } from './snapshots/module.ts';
import { teardownModule } from './teardown/module.ts';
import { usageModule } from './usage/module.ts';
import { volumesModule } from './volumes/module.ts';

export type CreateModule = (context: ControlContext) => Module;

/** In the order in which they receive events: runners before waiting requests and other servers. */
const MODULES: readonly CreateModule[] = [
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
  // Before sandboxes too: these mount them.
  volumesModule,
  sandboxesModule,
  endpointsModule,
  imagesModule,
  functionsModule,
  functionIngressModule,
  invocationsModule,
  schedulesModule,
  compatModule,
  jobsModule,
  secretsModule,
  registriesModule,
  objectStoresModule,
  regionsModule,
  billingModule,
  quotasModule,
  usageModule,
  invocationLogModule,
  gatewayRecordsModule,
  idempotencyModule,
  retentionModule,
  functionInstancesModule,
  functionTemplatesModule,
  gatewaysModule,
  serviceModule,
  metricsModule,
];

/** @param additional created after those of the control plane */
export function createModules(context: ControlContext, additional: readonly CreateModule[] = []): Module[] {
  const modules = [...MODULES, ...additional].map((create) => create(context));
  return [
    ...modules,
    teardownModule(
      context,
      modules.flatMap((module) => module.teardown ?? []),
    ),
  ];
}
