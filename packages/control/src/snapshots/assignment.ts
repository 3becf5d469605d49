import type { SnapshotAssignment } from '@releap/contract/runner';
import type { SnapshotRow } from '@releap/database';

/** What its runner needs of a snapshot. */
export type AssignedSnapshot = Pick<
  SnapshotRow,
  'id' | 'generation' | 'desired' | 'sandbox_id' | 'kind' | 'parent_id' | 'status'
>;

/** What the runner of this snapshot is to make of it. */
export function toSnapshotAssignment(row: AssignedSnapshot): SnapshotAssignment {
  return {
    kind: 'snapshot',
    id: row.id,
    generation: row.generation,
    desired: row.desired,
    spec: {
      vm_id: row.sandbox_id,
      kind: row.kind,
      ...(row.parent_id === null ? {} : { parent_id: row.parent_id }),
      ...(row.status === 'ready' ? { captured: true } : {}),
    },
  };
}
