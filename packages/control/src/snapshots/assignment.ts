import type { SnapshotAssignment } from '@releap/contract';
import type { SnapshotRow } from '@releap/database';

/** What the runner of this snapshot is to make of it. */
export function toSnapshotAssignment(row: SnapshotRow): SnapshotAssignment {
  return {
    snapshot_id: row.id,
    generation: row.generation,
    desired: row.desired,
    vm_id: row.sandbox_id,
    kind: row.kind,
    ...(row.parent_id === null ? {} : { parent_id: row.parent_id }),
    ...(row.status === 'ready' ? { captured: true } : {}),
  };
}
