/**
 * The operations of the compatibility facade, and its schemas by their names. They have an OpenAPI document of their own,
 * beside that of the API (docs/decisions/0035-compatibility-facade.md).
 */
import { Type } from 'typebox';
import { ErrorBody } from '../wire/platform/errors.ts';
import type { Operation } from '../wire/platform/operation.ts';
import { COMPAT_PREFIX } from './limits.ts';
import {
  CompatBuildInfo,
  CompatBuildInfoRecord,
  CompatEmpty,
  CompatLinkParams,
  CompatPortParams,
  CompatPreviewUrl,
  CompatSandbox,
  CompatSandboxCreate,
  CompatSandboxItem,
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

/** What any of them may refuse: the facade has one table for all. */
const shared = {
  tag: 'Compatibility',
  security: 'workload',
  errors: {
    400: 'A field or a parameter is not valid.',
    402: 'The organization is out of credits.',
    404: 'The project has no such sandbox, snapshot, image, log or preview.',
    409: 'The state does not allow this, or the name is taken.',
    429: 'No capacity, or a quota is used up.',
    501: 'The service does not have this of the protocol.',
    502: 'The machine of the sandbox did not respond.',
  },
  codes: [
    'already_exposed',
    'built_in',
    'concurrent_change',
    'endpoint_not_found',
    'image_failed',
    'image_not_found',
    'image_not_ready',
    'in_use',
    'invalid_cursor',
    'limit_reached',
    'log_not_found',
    'name_exists',
    'no_capacity',
    'not_persistent',
    'quota_exceeded',
    'sandbox_not_found',
    'sandbox_not_running',
    'snapshot_not_found',
    'unknown_region',
    'wrong_state',
  ],
} as const;
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

const { code, ...fields } = ErrorBody.properties;

export const CompatError = Type.Object({
  ...fields,
  statusCode: Type.Integer(),
  message: Type.String({ description: 'The same sentence as `error`.' }),
  code: Type.String({ description: 'The name of the status, as in `NOT_FOUND`.' }),
  error_code: code,
});

export const compatSchemas = {
  CompatError,
  CompatBuildInfo,
  CompatBuildInfoRecord,
  CompatPreviewUrl,
  CompatSandbox,
  CompatSandboxCreate,
  CompatSandboxItem,
  CompatSandboxList,
  CompatSignedPreviewUrl,
  CompatUrl,
  CompatSnapshot,
  CompatSnapshotCreate,
  CompatSnapshotList,
} as const;
