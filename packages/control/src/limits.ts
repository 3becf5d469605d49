/** What an operator may set of the control plane, and what it is when nobody did. */
import { HEARTBEAT_MS, RUNNER_LOST_AFTER_MS } from '@releap/contract';
import { TEARDOWN_GRACE_MS } from './teardown/teardown.ts';
import { SNAPSHOT_DEADLINE_MS } from './snapshots/transitions.ts';
import { STATE_DEADLINES, type StateDeadlines } from './sandboxes/transitions.ts';

/**
 * How many times over the machine may be promised. Guarantees are enforced by cgroups, and most sandboxes
 * idle most of the time; with 1 every guarantee can be called in by everybody at once.
 */
export interface Overcommit {
  cpu: number;
  mem: number;
  disk: number;
}

export interface ControlLimits {
  /** Sandboxes that may wait for a host at the same time; one more is refused with 429. */
  createQueue: number;
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
  /** Period of the sweeper, in milliseconds. */
  sweepMs: number;
}

export const CONTROL_LIMITS: ControlLimits = {
  createQueue: 1000,
  overcommit: { cpu: 8, mem: 4, disk: 4 },
  deadlines: STATE_DEADLINES,
  snapshotDeadlineMs: SNAPSHOT_DEADLINE_MS,
  runnerLostAfterMs: RUNNER_LOST_AFTER_MS,
  linkSilentMs: 3 * HEARTBEAT_MS,
  buildsPerRunner: 2,
  buildLeaseMs: 30_000,
  buildDeadlineMs: 45 * 60_000,
  buildAttempts: 3,
  teardownGraceMs: TEARDOWN_GRACE_MS,
  sweepMs: 1_000,
};
