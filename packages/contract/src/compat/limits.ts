/** Limits and defaults of the compatibility facade. */
import { BOUNDS } from '../wire/limits.ts';

/** Path below the base URL of the API: `compat_url` without its origin. */
export const COMPAT_PREFIX = '/compat';

export const COMPAT_LIMITS = {
  /** Names and values of a sandbox's labels, as JSON. */
  labelsBytes: 64 * 1024,
  snapshotNameChars: 256,
  entrypointWords: 64,
  /** Arguments of an entrypoint together. */
  entrypointChars: 4096,
  /** Wait of a create, start or stop for its result: a client that polls afterwards is told at once. */
  holdMs: 10_000,
  /** Validity of a signed preview URL, in seconds. */
  previewSeconds: 60,
  previewSecondsMax: BOUNDS.previewLinkSeconds,
} as const;

/** The size of a sandbox where neither the request nor its snapshot names one: that of the protocol's own service. */
export const COMPAT_DEFAULTS = { cpu: 1, memoryGib: 1, diskGib: 3 } as const;
