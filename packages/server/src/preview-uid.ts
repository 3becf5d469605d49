import { createHash } from 'node:crypto';

/** Above the users of sandboxes, below 2^31. */
const FIRST = 0x7080_0000;
const COUNT = 0x40_0000;

/**
 * User of the worker of a service's preview engine. The gateway starts it, and the runner lets it connect to sandboxes: both
 * know the home.
 */
export function previewUid(home: string): number {
  return FIRST + (createHash('sha256').update(`preview ${home}`).digest().readUInt32BE() % COUNT);
}
