import type { SnapshotAssignment } from '@releap/contract/runner';
import type { SnapshotRow } from '@releap/database';

/** The columns of a snapshot's assignment. */
export type AssignedSnapshot = Pick<
  SnapshotRow,
  'id' | 'generation' | 'desired' | 'sandbox_id' | 'kind' | 'parent_id' | 'status'
>;

/** The snapshot's assignment to its runner. */
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
