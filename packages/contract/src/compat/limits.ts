/** Limits and defaults of the compatibility facade. */
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
