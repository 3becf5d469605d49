/** How far hosts are overcommitted. */

/**
 * `spot`: only spot sandboxes. `burstable`: every sandbox that is not dedicated. `all`: dedicated ones too, for small machines
 * that sell no guarantees.
 */
export type OvercommitTier = 'spot' | 'burstable' | 'all';

/**
 * The overcommitment factor of each resource, and which sandboxes it applies to. An overcommitted sandbox counts with its
 * guarantee divided by the factor; all others count with the whole guarantee, so their sum never exceeds the host.
 */
export interface Overcommit {
  /** Factors of at least 1. */
  cpu: number;
  mem: number;
  disk: number;
  tier: OvercommitTier;
}

/** The settings of placement. */
export interface SchedulingLimits {
  /** Most sandboxes that wait for a host at the same time; further creates are refused with 429. */
  createQueue: number;
  /** An organization's share of the create queue, as a multiple of its free places. See CreateQueue. */
  createQueueShare: number;
  /** Wait after which the first request of a region gets a reservation on a host, in milliseconds. */
  reserveAfterMs: number;
  overcommit: Overcommit;
}
