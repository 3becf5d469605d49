/** What an operator may set of the control plane, and what it is when nobody did. */
import { HEARTBEAT_MS, RUNNER_LOST_AFTER_MS } from '@releap/contract';
import { TEARDOWN_GRACE_MS } from './teardown/teardown.ts';
import { SNAPSHOT_DEADLINE_MS } from './snapshots/transitions.ts';
import { STATE_DEADLINES, type StateDeadlines } from './sandboxes/transitions.ts';

/**
 * How many times guarantees may be given away, and whose. A sandbox that is overcommitted takes only this part of its
 * guarantees of a host; all others take the whole, so their sum never exceeds the host. Dedicated sandboxes are never
 * overcommitted.
 */
export interface Overcommit {
  /** Times, from 1. */
  cpu: number;
  mem: number;
  disk: number;
  /** `spot`: only spot sandboxes. `burstable`: every sandbox that is not dedicated, for machines of one's own. */
  tier: 'spot' | 'burstable';
}

export interface ControlLimits {
  /** Sandboxes that may wait for a host at the same time; one more is refused with 429. */
  createQueue: number;
  /** An organization may have at most this many times as many waiting as places of the queue are free. */
  createQueueShare: number;
  /** A request that has waited for this long gets a reservation on a host, if it is the first of its region; in milliseconds. */
  reserveAfterMs: number;
  overcommit: Overcommit;
  deadlines: StateDeadlines;
  /** Longest that a snapshot may be pending, in milliseconds. */
  snapshotDeadlineMs: number;
  /** A runner silent for this long is gone, in milliseconds. */
  runnerLostAfterMs: number;
  /** A link without any message for this long is closed, in milliseconds. */
  linkSilentMs: number;
  /** Builds that one runner is given at the same time. */
  buildsPerRunner: number;
  /** A build whose runner is not connected for this long is given to another, in milliseconds. */
  buildLeaseMs: number;
  /** Longest a build may take, and longest it may wait for a runner, in milliseconds. */
  buildDeadlineMs: number;
  /** How often a build is given out before it is failed. */
  buildAttempts: number;
  /** How long after its deletion a project is looked through for what late requests have left, in milliseconds. */
  teardownGraceMs: number;
  /** How long rows of what has ended (deleted sandboxes, finished jobs and so on) are kept, in days; 0 is for ever. */
  retentionDays: number;
  /** How long the audit log is kept, in days, by whole months; 0 is for ever. */
  auditRetentionDays: number;
  /** Period of the sweeper, in milliseconds. */
  sweepMs: number;
}

export const CONTROL_LIMITS: ControlLimits = {
  createQueue: 1000,
  createQueueShare: 1,
  reserveAfterMs: 10_000,
  overcommit: { cpu: 8, mem: 4, disk: 4, tier: 'spot' },
  deadlines: STATE_DEADLINES,
  snapshotDeadlineMs: SNAPSHOT_DEADLINE_MS,
  runnerLostAfterMs: RUNNER_LOST_AFTER_MS,
  linkSilentMs: 3 * HEARTBEAT_MS,
  buildsPerRunner: 2,
  buildLeaseMs: 30_000,
  buildDeadlineMs: 45 * 60_000,
  buildAttempts: 3,
  teardownGraceMs: TEARDOWN_GRACE_MS,
  retentionDays: 30,
  auditRetentionDays: 365,
  sweepMs: 1_000,
};
