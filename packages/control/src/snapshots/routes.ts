import {
  clampLimit,
  clampTimeout,
  decodeCursor,
  encodeCursor,
  isUuid,
  operations,
  snapshotNotFound,
  snapshotWaitIsOver,
  type SnapshotCreateResponse,
  type SnapshotDeleteResponse,
  type SnapshotList,
  type SnapshotRecord,
} from '@releap/contract';
import type { Hub } from '../events/hub.ts';
import type { App } from '../http/app.ts';
import { createSnapshot, type SnapshotContext } from './create.ts';
import { deleteSnapshot } from './delete.ts';
import { getSnapshot, listSnapshots, toSnapshotRecord } from './queries.ts';

export function snapshotRoutes(app: App, context: SnapshotContext & { hub: Hub }): void {
  const { database, hub } = context;

  app.operation(
    operations.createSnapshot,
    ({ params, body, principal, fresh }): Promise<SnapshotCreateResponse> =>
      createSnapshot(context, params.id, principal.projectId, body, fresh),
  );

  app.operation(operations.listSnapshots, async ({ query, principal }): Promise<SnapshotList> => {
    const after = query.cursor === undefined ? null : decodeCursor('snapshots', query.cursor);
    const page = await listSnapshots(database, principal.projectId, clampLimit(query.limit), after);
    return {
      snapshots: page.snapshots,
      next_cursor: page.last === null ? null : encodeCursor('snapshots', page.last),
    };
  });

  app.operation(
    operations.getSnapshot,
    async ({ params, query, principal, gone }): Promise<SnapshotRecord> => {
      const id = params.id.toLowerCase();
      const read = async (): Promise<SnapshotRecord> => {
        const row = isUuid(id) ? await getSnapshot(database.pool, id, principal.projectId) : undefined;
        if (row === undefined) throw snapshotNotFound(params.id);
        return toSnapshotRecord(row);
      };
      if (query.wait === undefined) return read();
      const until = performance.now() + clampTimeout(query.timeout_ms);
      // Taken before the row is read, so that no change falls between the two.
      using watch = hub.watch(id);
      for (;;) {
        const record = await read();
        if (snapshotWaitIsOver(query.wait, record.status)) return record;
        if ((await watch.next(Math.ceil(until - performance.now()), gone())) !== 'changed') return record;
      }
    },
  );

  app.operation(operations.deleteSnapshot, async ({ params, principal }): Promise<SnapshotDeleteResponse> => {
    const id = params.id.toLowerCase();
    await deleteSnapshot(context, id, principal.projectId);
    return { id, deleted: true };
  });
}
