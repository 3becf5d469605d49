/** The modules of the control plane. A new resource gets its line here. */
import { artifactsModule } from './storage/artifacts/module.ts';
import { authorityModule } from './fleet/authority/module.ts';
import { authModule } from './platform/auth/module.ts';
import { billingModule } from './tenancy/billing/module.ts';
import { compatModule } from './edge/compat/module.ts';
import type { ControlServices } from './services.ts';
import { credentialsModule } from './platform/credentials/module.ts';
import { endpointsModule } from './edge/endpoints/module.ts';
import { classesModule } from './fleet/classes/module.ts';
import { clusterModule } from './platform/events/module.ts';
import { functionsModule } from './functions/versions/module.ts';
import { functionIngressModule } from './functions/ingress/module.ts';
import { functionTarget } from './functions/instances/function-target.ts';
import { functionInstanceTarget } from './functions/instances/instance-target.ts';
import { functionInstancesModule } from './functions/instances/module.ts';
import { functionTemplatesModule } from './functions/templates/module.ts';
import { gatewaysModule } from './edge/gateways/module.ts';
import { hostsModule } from './compute/hosts/module.ts';
import { idempotencyModule } from './platform/idempotency/module.ts';
import { imagesModule } from './storage/images/module.ts';
import { gatewayRecordsModule } from './functions/invocations/gateway-records.ts';
import { invocationLogModule } from './functions/invocations/log-module.ts';
import { invocationsModule } from './functions/invocations/module.ts';
import { jobsModule } from './compute/jobs/module.ts';
import { managementModule } from './tenancy/management/module.ts';
import { metricsModule } from './platform/metrics/module.ts';
import type { Module } from './platform/module.ts';
import { objectStoresModule } from './storage/object-stores/module.ts';
import { operatorModule } from './tenancy/operator/module.ts';
import { quotasModule } from './tenancy/quotas/module.ts';
import { regionsModule } from './fleet/regions/module.ts';
import { registriesModule } from './storage/registries/module.ts';
import { retentionModule } from './platform/retention/module.ts';
import { runnersModule } from './fleet/runners/module.ts';
import { sandboxesModule } from './compute/sandboxes/module.ts';
import { schedulerModule } from './compute/scheduler/module.ts';
import { schedulesModule } from './functions/schedules/module.ts';
import { secretsModule } from './storage/secrets/module.ts';
import { serviceModule } from './edge/service/module.ts';
import { snapshotsModule } from './compute/snapshots/module.ts';
import { teardownModule } from './platform/teardown/module.ts';
import { usageModule } from './compute/usage/module.ts';
import { volumesModule } from './storage/volumes/module.ts';

export type CreateModule = (context: ControlServices) => Module;

/** In the order in which they receive events: runners before waiting requests and other servers. */
const MODULES: readonly CreateModule[] = [
  runnersModule,
  clusterModule,
  schedulerModule,
  hostsModule,
  operatorModule,
  authModule,
  credentialsModule,
  authorityModule,
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
  classesModule,
  billingModule,
  quotasModule,
  usageModule,
  invocationLogModule,
  gatewayRecordsModule,
  idempotencyModule,
  functionInstancesModule,
  functionTemplatesModule,
  (services) =>
    gatewaysModule(services, [functionTarget(services), functionInstanceTarget(services.instances)]),
  serviceModule,
  metricsModule,
];

/** @param additional created after those of the control plane */
export function createModules(context: ControlServices, additional: readonly CreateModule[] = []): Module[] {
  const modules = [...MODULES, ...additional].map((create) => create(context));
  return [
    ...modules,
    retentionModule(
      context,
      modules.flatMap((module) => module.purges ?? []),
    ),
    teardownModule(
      context,
      modules.flatMap((module) => module.teardown ?? []),
    ),
  ];
}
