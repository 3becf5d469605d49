/** The sandboxes and the snapshots of this machine as kinds of the link. */
import type { Logger } from 'pino';
import type { KindHandler } from '../link/kind-handler.ts';
import { fromSandboxAssignment, fromSnapshotAssignment } from './assignment.ts';
import type { Reconciler } from './reconciler.ts';
import type { SnapshotReconciler } from './snapshot-reconciler.ts';

export function sandboxHandler(reconciler: Reconciler, log: Logger): KindHandler<'sandbox'> {
  return {
    kind: 'sandbox',
    linked: () => reconciler.linked(),
    comesFirst: ({ spec }) => spec.origin?.type === 'fork',
    assign: (assignment) => reconciler.assign(fromSandboxAssignment(assignment)),
    named: (id) => reconciler.named(id),
    stored({ id, generation, status }) {
      if (status === 'unsupported') return;
      reconciler
        .stored([{ vm_id: id, generation, status }])
        .catch((error: unknown) => log.error({ err: error }, 'a record could not be removed'));
    },
  };
}

export function snapshotHandler(snapshots: SnapshotReconciler): KindHandler<'snapshot'> {
  return {
    kind: 'snapshot',
    linked: () => snapshots.linked(),
    assign: (assignment) => snapshots.assign(fromSnapshotAssignment(assignment)),
    named: (id) => snapshots.named(id),
  };
}
