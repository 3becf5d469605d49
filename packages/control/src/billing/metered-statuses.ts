import type { SandboxStatus } from '@releap/contract';

/**
 * Starting, running or stopping: its guarantees are charged. A pause is charged until the machine has stopped using
 * them. `deleting` is not: asking for the deletion ends it. The trigger in the migration 0006-credits reads the same
 * list as `sandbox_is_metered`; a test compares the two.
 */
export const METERED_STATUSES = [
  'assigned',
  'building',
  'booting',
  'running',
  'stopping',
  'pausing',
] as const satisfies readonly SandboxStatus[];
