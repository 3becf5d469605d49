import {
  clampLimit,
  clampTimeout,
  conflict,
  decodeCursor,
  encodeCursor,
  formatSandboxId,
  operations,
  parseSandboxId,
  sandboxNotFound,
  waitIsOver,
  waitTarget,
  type SandboxDeleteResponse,
  type SandboxGetQuery,
  type SandboxList,
  type SandboxRecord,
} from '@releap/contract';
import type { Principal } from '../auth/authenticator.ts';
import type { Hub } from '../events/hub.ts';
import type { App } from '../http/app.ts';
import { createSandbox, type CreateContext } from './create.ts';
import type { Lifecycle } from './lifecycle.ts';
import { logRoutes, type HostClient } from './logs.ts';
import { getFacts, getRecord, listRecords, toDetail, toRecord, type RecordRow } from './queries.ts';
import { decide, refusal } from './transitions.ts';

export interface SandboxRoutes extends CreateContext {
  lifecycle: Lifecycle;
  hub: Hub;
  hosts: HostClient;
}

/** How often a trigger is pulled again when the sandbox changed under it. Each try means that another one won. */
const TRIES = 8;

export function sandboxRoutes(app: App, context: SandboxRoutes): void {
  const { database, hub, lifecycle } = context;

  app.operation(operations.createSandbox, ({ body, principal }) => createSandbox(context, principal, body));

  app.operation(operations.listSandboxes, async ({ query, principal }): Promise<SandboxList> => {
    const after = query.cursor === undefined ? null : decodeCursor('sandboxes', query.cursor);
    const { rows, last } = await listRecords(database, principal.projectId, clampLimit(query.limit), after);
    return { vms: rows.map(toRecord), next_cursor: last === null ? null : encodeCursor('sandboxes', last) };
  });

  app.operation(operations.getSandbox, async ({ params, query, principal, gone }): Promise<SandboxRecord> => {
    const id = uuidOf(params.id);
    const row = await waitFor(id, params.id, principal, query, gone);
    return toDetail(row);
  });

  app.operation(operations.deleteSandbox, async ({ params, principal }): Promise<SandboxDeleteResponse> => {
    const id = uuidOf(params.id);
    for (let attempt = 0; attempt < TRIES; attempt++) {
      const [moved] = await lifecycle.apply('delete', [{ id, project_id: principal.projectId }]);
      if (moved !== undefined) {
        // One that never reached a host may have been in the way of others.
        if (moved.status === 'deleted') context.scheduler.roomMayHaveCome();
        return { vm_id: formatSandboxId(moved.region, moved.id), status: 'deleting' };
      }
      const facts = await getFacts(database.pool, id, principal.projectId);
      if (facts === undefined) throw sandboxNotFound(params.id);
      const row = decide('delete', facts);
      if (row?.to === 'same') return { vm_id: formatSandboxId(facts.region, facts.id), status: 'deleting' };
      if (row === undefined)
        throw conflict(`sandbox ${params.id} cannot be deleted: ${refusal('delete', facts)}`);
    }
    throw conflict(`sandbox ${params.id} is changing too fast to be deleted: try again`);
  });

  logRoutes(app, context);

  async function waitFor(
    id: string,
    shownId: string,
    principal: Principal,
    query: SandboxGetQuery,
    gone: () => AbortSignal,
  ): Promise<RecordRow> {
    const read = async (): Promise<RecordRow> => {
      const row = await getRecord(database.pool, id, principal.projectId);
      if (row === undefined) throw sandboxNotFound(shownId);
      return row;
    };
    const target = waitTarget(query);
    if (target === null) return read();
    const until = performance.now() + clampTimeout(query.timeout_ms);
    // Taken before the row is read, so that no change falls between the two.
    using watch = hub.watch(id);
    for (;;) {
      const row = await read();
      if (waitIsOver(target, row.status)) return row;
      const left = Math.ceil(until - performance.now());
      if ((await watch.next(left, gone())) !== 'changed') return row;
    }
  }
}

/** Malformed ids, and ids under another region's name, are told like those that do not exist. */
function uuidOf(text: string): string {
  const id = parseSandboxId(text);
  if (id === null) throw sandboxNotFound(text);
  return id.uuid;
}
