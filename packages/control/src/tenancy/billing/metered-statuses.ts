import type { SandboxStatus } from '@releap/contract';

/**
 * Starting, running or stopping: the guarantees are charged. A pause is charged until the host has released them.
 * `deleting` is not charged. The trigger in migration 0006-credits has the same list as `sandbox_is_metered`; a test
 * compares the two.
 */
export const METERED_STATUSES = [
  'assigned',
  'building',
  'booting',
  'running',
  'stopping',
  'pausing',
] as const satisfies readonly SandboxStatus[];
