/** Limits and defaults of the compatibility facade, and the operations of the protocol that it does not have. */
import { BOUNDS } from '../wire/platform/limits.ts';

/** Path below the base URL of the API: `compat_url` without its origin. */
export const COMPAT_PREFIX = '/compat';

/**
 * Clients that cannot set the headers of a WebSocket (browsers, serverless platforms) read the preview token of this port and
 * send it to the toolbox in this parameter of the URL.
 */
export const TOOLBOX_KEY = { port: 1, parameter: 'DAYTONA_SANDBOX_AUTH_KEY' } as const;

export const COMPAT_LIMITS = {
  /** Names and values of a sandbox's labels, as JSON. */
  labelsBytes: 64 * 1024,
  snapshotNameChars: 256,
  entrypointWords: 64,
  /** Arguments of an entrypoint together. */
  entrypointChars: 4096,
  /** A create, start or stop is answered with its result if there is one within this time. */
  resultMs: 10_000,
  /** Validity of a signed preview URL, in seconds. */
  previewSeconds: 60,
  previewSecondsMax: BOUNDS.previewLinkSeconds,
} as const;

/** Size of a sandbox if neither the request nor its snapshot has one: the default of the protocol's own service. */
export const COMPAT_DEFAULTS = { cpu: 1, memoryGib: 1, diskGib: 3 } as const;

/**
 * Operations of the protocol that answer 501 with their name. Routes that are neither here nor among the operations
 * answer 501 with their method and path.
 */
export interface UnsupportedOperation {
  method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  /** Below the prefix. */
  path: string;
  /** Begins the message: "… is not supported". */
  name: string;
}

const op = (method: UnsupportedOperation['method'], path: string, name: string): UnsupportedOperation => ({
  method,
  path,
  name,
});

export const UNSUPPORTED_OPERATIONS: readonly UnsupportedOperation[] = [
  op('GET', '/sandbox/paginated', 'the page-based sandbox list (use the cursors of GET /sandbox)'),
  op('GET', '/sandbox/for-runner', 'sandbox list for runners'),
  op('GET', '/sandbox/ssh-access/validate', 'SSH access token validation'),
  op('POST', '/sandbox/:id/ssh-access', 'SSH access token creation'),
  op('DELETE', '/sandbox/:id/ssh-access', 'SSH access token revocation'),
  op('POST', '/sandbox/:id/archive', 'sandbox archive'),
  op('POST', '/sandbox/:id/resize', 'sandbox resize'),
  op('PUT', '/sandbox/:id/labels', 'sandbox labels update'),
  op('POST', '/sandbox/:id/autostop/:interval', 'sandbox autostop interval'),
  op('POST', '/sandbox/:id/autoarchive/:interval', 'sandbox autoarchive interval'),
  op('POST', '/sandbox/:id/autodelete/:interval', 'sandbox autodelete interval'),
  // Of newer versions of the protocol.
  op('POST', '/sandbox/:id/autopause/:interval', 'sandbox autopause interval'),
  op('POST', '/sandbox/:id/ttl/:minutes', 'sandbox time to live update'),
  op('GET', '/sandbox/:id/secrets', 'sandbox secret list'),
  op('PUT', '/sandbox/:id/secrets', 'sandbox secret update'),
  op('GET', '/sandbox/:id/signing-key', 'sandbox signing key'),
  op('POST', '/sandbox/:id/signing-key/rotate', 'sandbox signing key rotation'),
  op('GET', '/sandbox/:id/build-logs-url', 'sandbox build-logs URL'),
  op('GET', '/sandbox/:id/build-logs', 'sandbox build logs'),
  op('POST', '/sandbox/:id/fork', 'sandbox fork'),
  op('GET', '/sandbox/:id/forks', 'sandbox fork list'),
  op('GET', '/sandbox/:id/parent', 'sandbox parent'),
  op('GET', '/sandbox/:id/ancestors', 'sandbox ancestors'),
  op('POST', '/sandbox/:id/backup', 'sandbox backup'),
  op('POST', '/sandbox/:id/recover', 'sandbox recover'),
  op('POST', '/sandbox/:id/pause', 'sandbox pause'),
  op('POST', '/sandbox/:id/snapshot', 'sandbox snapshot'),
  op('POST', '/sandbox/:id/public/:isPublic', 'sandbox public toggle'),
  op('PUT', '/sandbox/:id/state', 'sandbox state update'),
  op('POST', '/sandbox/:id/network-settings', 'sandbox network settings'),
  op('GET', '/sandbox/:id/organization', 'sandbox organization'),
  op('GET', '/sandbox/:id/region-quota', 'sandbox region quota'),
  op('GET', '/sandbox/:id/telemetry/logs', 'sandbox telemetry'),
  op('GET', '/sandbox/:id/telemetry/metrics', 'sandbox telemetry'),
  op('GET', '/sandbox/:id/telemetry/traces', 'sandbox telemetry'),
  op('GET', '/sandbox/:id/telemetry/traces/:traceId', 'sandbox telemetry'),
  op('POST', '/snapshots/:id/deactivate', 'snapshot deactivate'),
  op('GET', '/object-storage/push-access', 'object-storage push access'),
  op('GET', '/volumes', 'volume list'),
  op('POST', '/volumes', 'volume creation'),
  op('GET', '/volumes/by-name/:name', 'volume lookup by name'),
  op('GET', '/volumes/:id', 'volume lookup'),
  op('DELETE', '/volumes/:id', 'volume deletion'),
];
