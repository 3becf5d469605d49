/**
 * The operations of the compatibility facade. They are no part of the OpenAPI document, which describes the API's own
 * operations (docs/decisions/0035-compatibility-facade.md).
 */
import type { Operation } from '../wire/operation.ts';
import { COMPAT_PREFIX } from './limits.ts';
import {
  CompatEmpty,
  CompatLinkParams,
  CompatPortParams,
  CompatPreviewUrl,
  CompatSandbox,
  CompatSandboxCreate,
  CompatSandboxList,
  CompatSandboxParams,
  CompatSignedPreviewQuery,
  CompatSignedPreviewUrl,
  CompatUrl,
} from './sandbox.ts';
import {
  CompatBuildLogQuery,
  CompatSnapshot,
  CompatSnapshotCreate,
  CompatSnapshotList,
  CompatSnapshotListQuery,
  CompatSnapshotParams,
} from './snapshot.ts';

const shared = { tag: 'Compatibility', security: 'workload', errors: {} } as const;
const ok = <T>(schema: T) => ({ status: 200, response: { description: 'Success.', schema } }) as const;
const sandboxPath = <T extends string>(rest: T) => `${COMPAT_PREFIX}/sandbox${rest}` as const;
const snapshotPath = <T extends string>(rest: T) => `${COMPAT_PREFIX}/snapshots${rest}` as const;

export const compatOperations = {
  createSandbox: {
    ...shared,
    method: 'POST',
    path: sandboxPath(''),
    summary: 'Create a sandbox',
    body: CompatSandboxCreate,
    success: ok(CompatSandbox),
  },
  /** Its query may repeat parameters: the handler reads it. */
  listSandboxes: {
    ...shared,
    method: 'GET',
    path: sandboxPath(''),
    summary: 'List sandboxes',
    success: ok(CompatSandboxList),
  },
  getSandbox: {
    ...shared,
    method: 'GET',
    path: sandboxPath('/:id'),
    summary: 'Get a sandbox',
    params: CompatSandboxParams,
    success: ok(CompatSandbox),
  },
  deleteSandbox: {
    ...shared,
    method: 'DELETE',
    path: sandboxPath('/:id'),
    summary: 'Delete a sandbox',
    params: CompatSandboxParams,
    success: ok(CompatSandbox),
  },
  startSandbox: {
    ...shared,
    method: 'POST',
    path: sandboxPath('/:id/start'),
    summary: 'Start a sandbox',
    params: CompatSandboxParams,
    success: ok(CompatSandbox),
  },
  stopSandbox: {
    ...shared,
    method: 'POST',
    path: sandboxPath('/:id/stop'),
    summary: 'Stop a sandbox',
    params: CompatSandboxParams,
    success: ok(CompatSandbox),
  },
  touchSandbox: {
    ...shared,
    method: 'POST',
    path: sandboxPath('/:id/last-activity'),
    summary: 'Record activity of a sandbox',
    params: CompatSandboxParams,
    success: { status: 201, response: { description: 'Recorded.', schema: CompatSandbox } },
  },
  getToolboxProxyUrl: {
    ...shared,
    method: 'GET',
    path: sandboxPath('/:id/toolbox-proxy-url'),
    summary: 'Base URL of the toolbox',
    params: CompatSandboxParams,
    success: ok(CompatUrl),
  },
  getPreviewUrl: {
    ...shared,
    method: 'GET',
    path: sandboxPath('/:id/ports/:port/preview-url'),
    summary: 'Preview URL of a port',
    params: CompatPortParams,
    success: ok(CompatPreviewUrl),
  },
  getSignedPreviewUrl: {
    ...shared,
    method: 'GET',
    path: sandboxPath('/:id/ports/:port/signed-preview-url'),
    summary: 'Preview URL of a port that needs no header',
    params: CompatPortParams,
    query: CompatSignedPreviewQuery,
    success: ok(CompatSignedPreviewUrl),
  },
  expireSignedPreviewUrl: {
    ...shared,
    method: 'POST',
    path: sandboxPath('/:id/ports/:port/signed-preview-url/:token/expire'),
    summary: 'End a signed preview URL',
    params: CompatLinkParams,
    success: ok(CompatEmpty),
  },
  createSnapshot: {
    ...shared,
    method: 'POST',
    path: snapshotPath(''),
    summary: 'Create a snapshot',
    body: CompatSnapshotCreate,
    success: ok(CompatSnapshot),
  },
  listSnapshots: {
    ...shared,
    method: 'GET',
    path: snapshotPath(''),
    summary: 'List snapshots',
    query: CompatSnapshotListQuery,
    success: ok(CompatSnapshotList),
  },
  getSnapshot: {
    ...shared,
    method: 'GET',
    path: snapshotPath('/:id'),
    summary: 'Get a snapshot',
    params: CompatSnapshotParams,
    success: ok(CompatSnapshot),
  },
  activateSnapshot: {
    ...shared,
    method: 'POST',
    path: snapshotPath('/:id/activate'),
    summary: 'Activate a snapshot',
    params: CompatSnapshotParams,
    success: ok(CompatSnapshot),
  },
  deleteSnapshot: {
    ...shared,
    method: 'DELETE',
    path: snapshotPath('/:id'),
    summary: 'Delete a snapshot',
    params: CompatSnapshotParams,
    success: { status: 204, response: { description: 'Deleted.' } },
  },
  getSnapshotBuildLogsUrl: {
    ...shared,
    method: 'GET',
    path: snapshotPath('/:id/build-logs-url'),
    summary: 'URL of the log of a build',
    params: CompatSnapshotParams,
    success: ok(CompatUrl),
  },
  getSnapshotBuildLogs: {
    ...shared,
    method: 'GET',
    path: snapshotPath('/:id/build-logs'),
    summary: 'Log of a build',
    params: CompatSnapshotParams,
    query: CompatBuildLogQuery,
    success: {
      status: 200,
      response: { description: 'The log.', schema: CompatUrl.properties.url, contentType: 'text/plain' },
    },
  },
} as const satisfies Record<string, Operation>;
