/**
 * The operation table of the REST API: the server's routes, the OpenAPI document, docs/api.md and the typed client are
 * generated from it, so they cannot disagree. An operation is added when it works. The operations of runners and gateways
 * have a table beside it, those of the operator are in operator.ts.
 */
import type { Operation, ApiResource } from './platform/operation.ts';
import { creditsOperations, creditsResource } from './tenancy/credits.ts';
import { managementOperations, managementResource } from './tenancy/management.ts';
import { quotaOperations, quotaResource } from './tenancy/quota.ts';
import { imageOperations, imageResource } from './storage/image.ts';
import { objectStoreOperations, objectStoreResource } from './storage/object-store.ts';
import { secretOperations, secretResource } from './storage/secret.ts';
import { volumeOperations, volumeResource } from './storage/volume.ts';
import { hardwareClassOperations, hardwareClassResource } from './compute/hardware-class.ts';
import { jobOperations, jobResource } from './compute/job.ts';
import { objectStoreMountOperations, objectStoreMountResource } from './compute/object-store-mount.ts';
import { regionOperations, regionResource } from './compute/region.ts';
import { sandboxOperations, sandboxResource } from './compute/sandbox.ts';
import { snapshotOperations, snapshotResource } from './compute/snapshot.ts';
import { usageOperations, usageResource } from './compute/usage.ts';
import { functionOperations, functionResource } from './functions/function.ts';
import { invocationLogOperations, invocationLogResource } from './functions/invocation-log.ts';
import {
  functionInvokeOperations,
  functionInvokeResource,
  invocationOperations,
  invocationResource,
} from './functions/invocation.ts';
import { scheduleOperations, scheduleResource } from './functions/schedule.ts';
import { endpointOperations, endpointResource } from './edge/endpoint.ts';
import { serviceOperations, serviceResource } from './edge/service.ts';
import { toolboxResource } from './toolbox/operations.ts';
import { internalArtifactOperations } from './internal/artifacts.ts';
import { internalCredentialOperations } from './internal/credentials.ts';
import { internalGatewayOperations } from './internal/gateway.ts';
import { internalRunnerOperations } from './internal/runner.ts';
import { internalVolumeOperations } from './internal/volumes.ts';

/** The operations of the control plane. A new resource gets its line here and in `resources`. */
export const operations = {
  ...sandboxOperations,
  ...endpointOperations,
  ...snapshotOperations,
  ...imageOperations,
  ...functionOperations,
  ...functionInvokeOperations,
  ...invocationLogOperations,
  ...invocationOperations,
  ...scheduleOperations,
  ...jobOperations,
  ...usageOperations,
  ...secretOperations,
  ...volumeOperations,
  ...objectStoreOperations,
  ...objectStoreMountOperations,
  ...regionOperations,
  ...hardwareClassOperations,
  ...managementOperations,
  ...creditsOperations,
  ...quotaOperations,
  ...serviceOperations,
} as const;

/** The operations of runners and gateways. They are not part of the public API and its OpenAPI document. */
export const internalOperations = {
  ...internalGatewayOperations,
  ...internalRunnerOperations,
  ...internalCredentialOperations,
  ...internalArtifactOperations,
  ...internalVolumeOperations,
} as const;

/** All resources, in the order of the documents. */
export const resources: readonly ApiResource[] = [
  sandboxResource,
  endpointResource,
  snapshotResource,
  imageResource,
  functionResource,
  functionInvokeResource,
  invocationLogResource,
  invocationResource,
  scheduleResource,
  toolboxResource,
  jobResource,
  usageResource,
  secretResource,
  volumeResource,
  objectStoreResource,
  objectStoreMountResource,
  regionResource,
  hardwareClassResource,
  managementResource,
  creditsResource,
  quotaResource,
  serviceResource,
];

/** All operations with their ids, in the order of the documents. */
export function listOperations(): [string, Operation][] {
  return resources.flatMap((resource) => Object.entries(resource.operations));
}
