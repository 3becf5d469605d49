import {
  clampLimit,
  COMPAT_PREFIX,
  compatOperations as operations,
  conflict,
  notFound,
  quote,
  snapshotNotFound,
} from '@releap/contract';
import type { Principal } from '../../platform/auth/authenticator.ts';
import type { Planes } from '../../platform/http/planes.ts';
import { deleteImage } from '../../storage/images/images.ts';
import { logHeaders, type HostClient } from '../../fleet/runners/host-client.ts';
import type { SnapshotContext } from '../../compute/snapshots/create.ts';
import { deleteSnapshot } from '../../compute/snapshots/delete.ts';
import { readBuildLog } from './build-logs.ts';
import { createSnapshot, type CompatSnapshotContext } from './create-snapshot.ts';
import { findSnapshot, listSnapshots, toSnapshot, type CompatSnapshotRow } from './snapshot-rows.ts';

export interface CompatSnapshotRoutes extends CompatSnapshotContext {
  hosts: HostClient;
  snapshots: SnapshotContext['snapshots'];
  limits: SnapshotContext['limits'];
  /** Base URL of the API, for URLs of logs; that of the request when absent. */
  publicUrl: string | undefined;
}

export function compatSnapshotRoutes({ compat }: Planes, context: CompatSnapshotRoutes): void {
  const { database, builds } = context;

  compat.operation(operations.createSnapshot, async ({ body, principal }) => {
    const id = await createSnapshot(context, principal, body);
    return toSnapshot(await find(id, principal), principal.orgId);
  });

  compat.operation(operations.listSnapshots, async ({ query, principal }) => {
    const page = query.page ?? 1;
    const limit = clampLimit(query.limit);
    const { rows, total } = await listSnapshots(database, principal.projectId, { ...query, page, limit });
    const items = rows.map((row) => toSnapshot(row, principal.orgId));
    return { items, total, page, totalPages: Math.ceil(total / limit) };
  });

  compat.operation(operations.getSnapshot, async ({ params, principal }) =>
    toSnapshot(await find(params.id, principal), principal.orgId),
  );

  compat.operation(operations.activateSnapshot, async ({ params, principal }) => {
    const row = await find(params.id, principal);
    if (row.state === 'error' || row.state === 'build_failed')
      throw conflict(
        `snapshot ${quote(row.name)} cannot be activated: ${row.error?.split('\n', 1)[0] ?? 'it has failed'}. Delete it, and create it again`,
        'image_failed',
      );
    // Snapshots are never deactivated.
    return toSnapshot(row, principal.orgId);
  });

  compat.operation(operations.deleteSnapshot, async ({ params, principal }) => {
    const row = await find(params.id, principal);
    if (row.kind === 'captured') {
      await deleteSnapshot(context, row.id, principal.projectId);
      return;
    }
    await deleteImage(database, principal.projectId, row.id);
    builds.kick();
  });

  compat.operation(operations.getSnapshotBuildLogsUrl, async ({ params, principal, request }) => {
    const row = await find(params.id, principal);
    jobOf(row);
    const base = context.publicUrl ?? `${request.protocol}://${request.host}`;
    // Without a query: clients append theirs.
    return { url: `${base}${COMPAT_PREFIX}/snapshots/${row.id}/build-logs` };
  });

  compat.operation(
    operations.getSnapshotBuildLogs,
    async ({ params, query, principal, reply, abortSignal }) => {
      const id = jobOf(await find(params.id, principal));
      const follow = query.follow ?? false;
      const { projectId } = principal;
      const log = await readBuildLog(context, { id, projectId, follow, signal: abortSignal() });
      logHeaders(reply);
      return log;
    },
  );

  async function find(idOrName: string, { projectId }: Principal): Promise<CompatSnapshotRow> {
    const row = await findSnapshot(database, projectId, idOrName);
    if (row === undefined) throw snapshotNotFound(idOrName);
    return row;
  }
}

function jobOf(row: CompatSnapshotRow): string {
  if (row.job_id === null)
    throw notFound(
      `snapshot ${quote(row.name)} was not built, so its build log was not found`,
      'log_not_found',
    );
  return row.job_id;
}
