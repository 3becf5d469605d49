/**
 * The life of a snapshot, as data, like that of a sandbox. Nothing changes a snapshot's status except through a row of
 * `SNAPSHOT_TRANSITIONS`; `transition-sql.ts` turns each trigger's rows into one conditional UPDATE.
 */
import type { SnapshotRowStatus } from '@releap/database';

export type SnapshotTrigger =
  | 'delete'
  | 'observe:ready'
  | 'observe:failed'
  | 'observe:deleted'
  /** It has been pending for too long. */
  | 'deadline'
  /** Its sandbox was deleted or has failed. */
  | 'sandbox-gone';

export interface SnapshotTransition {
  from: readonly SnapshotRowStatus[];
  on: SnapshotTrigger;
  to: SnapshotRowStatus | 'same';
  /** What the runner is to make of it from now on; the generation grows, so whatever it said before is void. */
  wants?: 'deleted';
  /** `lineage`: its sandbox descends from it now. `release`: the runner has nothing of it any more. */
  effects?: readonly ('lineage' | 'release')[];
  /** Why it came to this, when whoever pulls the trigger gives no reason. */
  error?: string;
}

// biome-ignore format: a table is read by its rows
export const SNAPSHOT_TRANSITIONS: readonly SnapshotTransition[] = [
  { from: ['pending'], on: 'observe:ready', to: 'ready', effects: ['lineage'] },
  { from: ['pending', 'ready'], on: 'observe:failed', to: 'failed', wants: 'deleted', error: 'its host gave no reason' },
  { from: ['pending', 'ready'], on: 'observe:deleted', to: 'failed', wants: 'deleted', error: 'its host no longer has it' },
  { from: ['pending'], on: 'deadline', to: 'failed', wants: 'deleted', error: 'it was not taken in time' },
  { from: ['pending'], on: 'sandbox-gone', to: 'failed', wants: 'deleted', error: 'its sandbox ended before it was taken' },
  { from: ['pending', 'ready', 'failed'], on: 'delete', to: 'deleted', wants: 'deleted' },
  { from: ['failed', 'deleted'], on: 'observe:deleted', to: 'same', effects: ['release'] },
];

/** The row that applies, if any. At most one does. */
export function decideSnapshot(
  trigger: SnapshotTrigger,
  status: SnapshotRowStatus,
): SnapshotTransition | undefined {
  return SNAPSHOT_TRANSITIONS.find((row) => row.on === trigger && row.from.includes(status));
}

/** Longest that a snapshot may be pending, in milliseconds: a large memory on a slow disk, behind others. */
export const SNAPSHOT_DEADLINE_MS = 10 * 60_000;
