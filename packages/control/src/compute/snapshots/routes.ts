import {
  clampLimit,
  clampTimeout,
  cursorPosition,
  nextCursor,
  SNAPSHOT_CURSORS,
  isUuid,
  operations,
  snapshotNotFound,
  snapshotWaitIsOver,
  type SnapshotCreateResponse,
  type SnapshotDeleteResponse,
  type SnapshotList,
  type SnapshotRecord,
} from '@releap/contract';
import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { Planes } from '../../platform/http/planes.ts';
import { createSnapshot, type SnapshotContext } from './create.ts';
import { deleteSnapshot } from './delete.ts';
import { getSnapshot, listSnapshots, toSnapshotRecord } from './queries.ts';

export function snapshotRoutes(
  { workload }: Planes,
  context: SnapshotContext & { changes: ChangeNotifier },
): void {
  const { database, changes } = context;

  workload.operation(
    operations.createSnapshot,
    ({ params, body, principal, ids }): Promise<SnapshotCreateResponse> =>
      createSnapshot(context, params.id, principal.projectId, body, ids),
  );

  workload.operation(operations.listSnapshots, async ({ query, principal }): Promise<SnapshotList> => {
    const after = cursorPosition(SNAPSHOT_CURSORS, query.cursor);
    const page = await listSnapshots(database, principal.projectId, clampLimit(query.limit), after);
    return {
      snapshots: page.snapshots,
      next_cursor: nextCursor(SNAPSHOT_CURSORS, page.last),
    };
  });

  workload.operation(
    operations.getSnapshot,
    async ({ params, query, principal, abortSignal }): Promise<SnapshotRecord> => {
      const id = params.id.toLowerCase();
      const read = async (): Promise<SnapshotRecord> => {
        const row = isUuid(id) ? await getSnapshot(database.pool, id, principal.projectId) : undefined;
        if (row === undefined) throw snapshotNotFound(params.id);
        return toSnapshotRecord(row);
      };
      if (query.wait === undefined) return read();
      const until = performance.now() + clampTimeout(query.timeout_ms);
      // Start watching before the row is read, so that no change is missed.
      using watch = changes.watch(id);
      for (;;) {
        const record = await read();
        if (snapshotWaitIsOver(query.wait, record.status)) return record;
        if ((await watch.next(Math.ceil(until - performance.now()), abortSignal())) !== 'changed')
          return record;
      }
    },
  );

  workload.operation(
    operations.deleteSnapshot,
    async ({ params, principal }): Promise<SnapshotDeleteResponse> => {
      const id = params.id.toLowerCase();
      await deleteSnapshot(context, id, principal.projectId);
      return { id, deleted: true };
    },
  );
}
