/**
 * Schemas and the table of operations, without Node APIs, so that a browser can load them. The folders are named like the wings of
 * the control plane; files import from their own folder and from those above it in this list.
 */
export * from './platform/errors.ts';
export * from './platform/ids.ts';
export * from './platform/limits.ts';
export * from './platform/operation-errors.ts';
export * from './platform/operation.ts';
export * from './platform/paging.ts';
export * from './tenancy/credits.ts';
export * from './tenancy/management.ts';
export * from './tenancy/organization.ts';
export * from './tenancy/project.ts';
export * from './tenancy/quota.ts';
export * from './storage/image.ts';
export * from './storage/object-store.ts';
export * from './storage/secret.ts';
export * from './storage/volume.ts';
export * from './compute/job.ts';
export * from './compute/object-store-mount.ts';
export * from './compute/region.ts';
export * from './compute/sandbox-create.ts';
export * from './compute/sandbox-logs.ts';
export * from './compute/sandbox-record.ts';
export * from './compute/sandbox.ts';
export * from './compute/snapshot.ts';
export * from './compute/usage.ts';
export * from './edge/endpoint.ts';
export * from './edge/service.ts';
export * from './functions/deploy.ts';
export * from './functions/function.ts';
export * from './functions/invocation-log.ts';
export * from './functions/invocation.ts';
export * from './functions/schedule.ts';
export * from './toolbox/code.ts';
export * from './toolbox/connection.ts';
export * from './toolbox/files.ts';
export * from './toolbox/operations.ts';
export * from './toolbox/process.ts';
export * from './toolbox/sessions.ts';
export * from './internal/artifacts.ts';
export * from './internal/credentials.ts';
export * from './internal/gateway.ts';
export * from './internal/runner.ts';
export * from './internal/volumes.ts';
export * from './operations.ts';
export * from './operator.ts';
