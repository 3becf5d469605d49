import {
  clampLimit,
  clampTimeout,
  cursorPosition,
  nextCursor,
  SANDBOX_CURSORS,
  formatSandboxId,
  operations,
  sandboxNotFound,
  waitIsOver,
  waitTarget,
  type SandboxDeleteResponse,
  type SandboxForkResponse,
  type SandboxGetQuery,
  type SandboxId,
  type SandboxLifecycleResponse,
  type SandboxList,
  type SandboxRecord,
} from '@releap/contract';
import type { Principal } from '../../platform/auth/authenticator.ts';
import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { Planes } from '../../platform/http/planes.ts';
import type { HostClient } from '../../fleet/runners/host-client.ts';
import type { Snapshots } from '../snapshots/snapshots.ts';
import { changeSandbox, readSandboxId } from './change.ts';
import { createForTenant, type CreateContext } from './create.ts';
import { deleteSandbox } from './delete.ts';
import { deniedEgressRoutes } from './denied-egress.ts';
import { forkSandbox } from './fork.ts';
import { leaseRoutes } from './leases.ts';
import type { Lifecycle } from './lifecycle.ts';
import { logRoutes } from './logs.ts';
import { getFacts, listRecords, toDetail, toRecord, type DetailRow } from './queries.ts';

export interface SandboxRoutes extends CreateContext {
  lifecycle: Lifecycle;
  changes: ChangeNotifier;
  hosts: HostClient;
  snapshots: Snapshots;
}

export function sandboxRoutes(planes: Planes, context: SandboxRoutes): void {
  const { workload } = planes;
  const { database, changes } = context;

  workload.operation(operations.createSandbox, ({ body, principal, ids }) =>
    createForTenant(context, principal, body, ids),
  );

  workload.operation(operations.listSandboxes, async ({ query, principal }): Promise<SandboxList> => {
    const after = cursorPosition(SANDBOX_CURSORS, query.cursor);
    const { rows, last } = await listRecords(database, principal.projectId, clampLimit(query.limit), after);
    return { vms: rows.map(toRecord), next_cursor: nextCursor(SANDBOX_CURSORS, last) };
  });

  workload.operation(
    operations.getSandbox,
    async ({ params, query, principal, abortSignal }): Promise<SandboxRecord> => {
      const row = await waitFor(readSandboxId(params.id), params.id, principal, query, abortSignal);
      return toDetail(row);
    },
  );

  workload.operation(
    operations.deleteSandbox,
    async ({ params, principal }): Promise<SandboxDeleteResponse> => {
      const { id, region } = await deleteSandbox(context, params.id, principal.projectId);
      return { vm_id: formatSandboxId(region, id), status: 'deleting' };
    },
  );

  const lifecycleOperations = [
    ['stop', operations.stopSandbox],
    ['start', operations.startSandbox],
    ['pause', operations.pauseSandbox],
    ['resume', operations.resumeSandbox],
  ] as const;
  for (const [event, operation] of lifecycleOperations) {
    workload.operation(operation, async ({ params, principal }): Promise<SandboxLifecycleResponse> => {
      if (event === 'start' || event === 'resume') await requireCredits(principal, params.id);
      const { id, region, status } = await changeSandbox(context, event, params.id, principal.projectId);
      return { vm_id: formatSandboxId(region, id), status };
    });
  }

  workload.operation(
    operations.forkSandbox,
    ({ params, body, principal, ids }): Promise<SandboxForkResponse> =>
      forkSandbox(
        context,
        params.id,
        principal.projectId,
        body,
        () => requireCredits(principal, params.id),
        ids,
      ),
  );

  leaseRoutes(planes, context);
  logRoutes(planes, context);
  deniedEgressRoutes(planes, context);

  async function requireCredits(principal: Principal, shownId: string): Promise<void> {
    try {
      await context.requireCredits(principal.orgId);
    } catch (refusal) {
      // 404 comes before 402.
      const facts = await getFacts(database.pool, readSandboxId(shownId), principal.projectId);
      throw facts === undefined ? sandboxNotFound(shownId) : refusal;
    }
  }

  async function waitFor(
    id: SandboxId,
    shownId: string,
    principal: Principal,
    query: SandboxGetQuery,
    abortSignal: () => AbortSignal,
  ): Promise<DetailRow> {
    const read = async (): Promise<DetailRow> => {
      const row = await context.readRecord(id, principal.projectId);
      if (row === undefined) throw sandboxNotFound(shownId);
      return row;
    };
    const target = waitTarget(query);
    if (target === null) return read();
    const until = performance.now() + clampTimeout(query.timeout_ms);
    // Start watching before the row is read, so that no change is missed.
    using watch = changes.watch(id.uuid);
    for (;;) {
      const row = await read();
      if (waitIsOver(target, row.status)) return row;
      const left = Math.ceil(until - performance.now());
      if ((await watch.next(left, abortSignal())) !== 'changed') return row;
    }
  }
}
