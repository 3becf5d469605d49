/** The control plane's settings, with their defaults. */
import { MOVE_DEADLINES, type MoveDeadlines } from './compute/moves/deadlines.ts';
import { HEARTBEAT_MS, RUNNER_LOST_AFTER_MS } from '@releap/contract';
import { DEFAULT_QUOTAS, type Quotas } from './tenancy/quotas/quotas.ts';
import { TEARDOWN_GRACE_MS } from './platform/teardown/teardown.ts';
import { SNAPSHOT_DEADLINE_MS } from './compute/snapshots/transitions.ts';
import type { InstanceLimits } from './functions/instances/instances.ts';
import type { ReplicationLimits } from './storage/artifacts/replications.ts';
import type { BuildLimits } from './storage/images/build-queue.ts';
import type { SchedulingLimits } from './compute/scheduler/overcommit.ts';
import { STATE_DEADLINES, type StateDeadlines } from './compute/sandboxes/transitions.ts';

export interface ControlLimits extends SchedulingLimits, BuildLimits, InstanceLimits, ReplicationLimits {
  /** Of each organization without quotas of its own. */
  quotas: Quotas;
  deadlines: StateDeadlines;
  /** Longest a snapshot may be pending, in milliseconds. */
  snapshotDeadlineMs: number;
  /** Silence after which a runner is lost, in milliseconds. */
  runnerLostAfterMs: number;
  /** Silence after which a link is closed, in milliseconds. */
  linkSilentMs: number;
  /** Largest build context, in bytes. */
  buildContextBytes: number;
  /** How long after its deletion a project is searched for leftovers of late requests, in milliseconds. */
  teardownGraceMs: number;
  /** Retention of ended rows (deleted sandboxes, finished jobs and so on), in days; 0 keeps them. */
  retentionDays: number;
  /** Retention of the audit log, in days, by whole months; 0 keeps it. */
  auditRetentionDays: number;
  /** Retention of invocations of functions, in days, by whole days. */
  invocationRetentionDays: number;
  /** How long the store keeps a blob that no row names, in milliseconds. */
  blobGraceMs: number;
  /** How long the store of a region keeps a copy of an artifact of elsewhere that nothing uses, in milliseconds. */
  replicaIdleMs: number;
  /** How long a volume keeps commits that are not among its newest, in milliseconds. */
  volumeHistoryMs: number;
  /** Longest `scaledown_window_s` of a function: idle instances cost nothing. */
  functionWindowMaxS: number;
  /** How long the handler of a new version may take until it listens, in milliseconds. */
  functionListenMs: number;
  /** How long a new server deletes no sandbox whose lease has expired, in milliseconds. */
  leaseGraceMs: number;
  moves: MoveDeadlines;
  /** Period of the sweeper, in milliseconds. */
  sweepMs: number;
}

export const CONTROL_LIMITS: ControlLimits = {
  quotas: DEFAULT_QUOTAS,
  createQueue: 1000,
  createQueueShare: 1,
  reserveAfterMs: 10_000,
  overcommit: { cpu: 8, mem: 4, disk: 4, tier: 'spot' },
  deadlines: STATE_DEADLINES,
  snapshotDeadlineMs: SNAPSHOT_DEADLINE_MS,
  runnerLostAfterMs: RUNNER_LOST_AFTER_MS,
  linkSilentMs: 3 * HEARTBEAT_MS,
  buildsPerRunner: 4,
  buildsPerProject: 2,
  buildContextBytes: 512 * 1024 * 1024,
  buildLeaseMs: 30_000,
  buildDeadlineMs: 45 * 60_000,
  buildHostMs: 30_000,
  buildAttempts: 3,
  teardownGraceMs: TEARDOWN_GRACE_MS,
  retentionDays: 30,
  auditRetentionDays: 365,
  invocationRetentionDays: 30,
  blobGraceMs: 24 * 3_600_000,
  replicaIdleMs: 7 * 24 * 3_600_000,
  replications: 4,
  replicationDeadlineMs: 3_600_000,
  volumeHistoryMs: 7 * 24 * 3_600_000,
  functionLeaseMs: 15_000,
  functionWindowMaxS: 3_600,
  functionGraceMs: 3_000,
  functionFullMs: 30_000,
  // An emulated guest starts a large framework slowly.
  functionListenMs: 120_000,
  leaseGraceMs: 60_000,
  moves: MOVE_DEADLINES,
  sweepMs: 1_000,
};
