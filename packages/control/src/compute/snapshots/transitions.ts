/** The transition table of snapshots, for `lifecycle/machine.ts`. */
import type { SnapshotRow, SnapshotRowStatus } from '@releap/database';
import { defineMachine, type Transition } from '../../platform/lifecycle/machine.ts';

export type SnapshotEvent =
  | 'delete'
  | 'observe:ready'
  | 'observe:failed'
  | 'observe:deleted'
  /** It has been pending for too long. */
  | 'deadline'
  /** Its sandbox was deleted or has failed. */
  | 'sandbox-ended'
  /** The operator has forgotten its host. */
  | 'host-forgotten'
  /** The same, and the store has it. */
  | 'host-forgotten-stored';

/** `lineage`: its sandbox descends from it now. `release`: the runner no longer holds it. */
export type SnapshotEffect = 'lineage' | 'release';

export type SnapshotTransition = Transition<
  SnapshotRowStatus,
  SnapshotEvent,
  never,
  'deleted',
  SnapshotEffect
>;

// biome-ignore format: one row per line
export const SNAPSHOT_TRANSITIONS: readonly SnapshotTransition[] = [
  { from: ['pending'], on: 'observe:ready', to: 'ready', effects: ['lineage'] },
  { from: ['pending', 'ready'], on: 'observe:failed', to: 'failed', wants: 'deleted', error: 'its host gave no reason' },
  { from: ['pending', 'ready'], on: 'observe:deleted', to: 'failed', wants: 'deleted', error: 'its host no longer has it' },
  { from: ['pending'], on: 'deadline', to: 'failed', wants: 'deleted', error: 'it was not taken in time' },
  { from: ['pending'], on: 'sandbox-ended', to: 'failed', wants: 'deleted', error: 'its sandbox ended before it was taken' },
  { from: ['pending', 'ready', 'failed'], on: 'delete', to: 'deleted', wants: 'deleted' },
  { from: ['failed', 'deleted'], on: 'observe:deleted', to: 'same', effects: ['release'] },
  { from: ['pending', 'ready'], on: 'host-forgotten', to: 'failed', wants: 'deleted', effects: ['release'], error: 'its host was forgotten by the operator' },
  { from: ['failed', 'deleted'], on: 'host-forgotten', to: 'same', effects: ['release'] },
  { from: ['ready'], on: 'host-forgotten-stored', to: 'same', effects: ['release'] },
];

export const SNAPSHOT_MACHINE = defineMachine<SnapshotTransition, Pick<SnapshotRow, 'status'>>({
  name: 'snapshot',
  table: 'snapshots',
  transitions: SNAPSHOT_TRANSITIONS,
  // A snapshot is `pending` only after its creation, which sets the deadline.
  transient: ['pending'],
});

/** Longest that a snapshot may be pending, in milliseconds: a large memory on a slow disk, behind others. */
export const SNAPSHOT_DEADLINE_MS = 10 * 60_000;
