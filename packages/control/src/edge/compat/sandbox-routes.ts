import {
  COMPAT_LIMITS,
  compatOperations as operations,
  conflict,
  newUuid,
  quote,
  sandboxNotFound,
  type CompatSandboxState,
} from '@releap/contract';
import type { Principal } from '../../platform/auth/authenticator.ts';
import type { ChangeNotifier } from '../../platform/events/change-notifier.ts';
import type { Planes } from '../../platform/http/planes.ts';
import { changeSandbox } from '../../compute/sandboxes/change.ts';
import { deleteSandbox, type DeleteContext } from '../../compute/sandboxes/delete.ts';
import { createSandbox, type CompatCreateContext } from './create.ts';
import { notSupported } from './errors.ts';
import { parseListQuery } from './list-query.ts';
import { listSandboxes } from './list.ts';
import { toItem, toolboxUrl, toSandbox } from './sandbox-record.ts';
import {
  findSandbox,
  forgetSandbox,
  readSandbox,
  setStopped,
  touchSandbox,
  type DetailRow,
} from './sandbox-rows.ts';
import { isStarting } from './states.ts';
import { limitStopped } from '../../compute/sandboxes/shown-stopped.ts';

export interface CompatSandboxContext extends CompatCreateContext, DeleteContext {
  changes: ChangeNotifier;
  limits: CompatCreateContext['limits'] & DeleteContext['limits'];
  scheduler: CompatCreateContext['scheduler'] & DeleteContext['scheduler'];
}

const destroyed = (row: DetailRow, orgId: string) => ({
  ...toSandbox(row, orgId),
  state: 'destroyed' as const,
  desiredState: 'destroyed' as const,
});

export function compatSandboxRoutes({ compat }: Planes, context: CompatSandboxContext): void {
  const { database, changes } = context;
  const { pool } = database;

  compat.operation(operations.createSandbox, async ({ body, principal, abortSignal }) => {
    const id = newUuid();
    using watch = changes.watch(id);
    await createSandbox(context, principal, body, id);
    const row = await waitForResult(id, watch, principal, isStarting, abortSignal);
    if (row === undefined) throw sandboxNotFound(id);
    return toSandbox(row, principal.orgId);
  });

  compat.operation(operations.listSandboxes, async ({ request, principal }) => {
    const query = parseListQuery(request.query as Record<string, unknown>);
    const { rows, nextCursor } = await listSandboxes(database, principal.projectId, query);
    return { items: rows.map((row) => toItem(row, principal.orgId)), nextCursor };
  });

  compat.operation(operations.getSandbox, async ({ params, principal }) =>
    toSandbox(await find(params.id, principal), principal.orgId),
  );

  compat.operation(operations.deleteSandbox, async ({ params, principal }) => {
    const row = await find(params.id, principal);
    if (row.stopped) await forgetSandbox(pool, row.id);
    if (row.state !== 'stopped' || row.persistent) await deleteSandbox(context, row.id, principal.projectId);
    return destroyed(row, principal.orgId);
  });

  compat.operation(operations.startSandbox, async ({ params, principal, abortSignal }) => {
    const row = await find(params.id, principal);
    if (row.state === 'started' || isStarting(row.state)) return toSandbox(row, principal.orgId);
    if (!row.persistent && (row.state === 'stopped' || row.state === 'stopping'))
      throw notSupported(
        'start of a stopped sandbox',
        ': sandboxes of this facade are not persistent, and its stop has deleted its disk; create another one, or use a persistent ' +
          'sandbox of POST /vms, which stops and starts with its disk',
      );
    if (row.state !== 'stopped' && row.state !== 'paused')
      throw conflict(`sandbox ${quote(params.id)} cannot be started: it is ${row.state}`, 'wrong_state');
    // A persistent sandbox of the API.
    await context.requireCredits(principal.orgId);
    using watch = changes.watch(row.id);
    const event = row.state === 'paused' && row.has_memory ? 'resume' : 'start';
    await changeSandbox(context, event, row.id, principal.projectId);
    const started = await waitForResult(row.id, watch, principal, isStarting, abortSignal);
    return toSandbox(started ?? row, principal.orgId);
  });

  compat.operation(operations.stopSandbox, async ({ params, principal, abortSignal }) => {
    const row = await find(params.id, principal);
    if (row.state === 'stopped' || row.state === 'stopping') return toSandbox(row, principal.orgId);
    if (row.state === 'destroying')
      throw conflict(`sandbox ${quote(params.id)} cannot be stopped: it is being deleted`, 'wrong_state');
    using watch = changes.watch(row.id);
    if (row.persistent) await changeSandbox(context, 'stop', row.id, principal.projectId);
    else {
      // Before the deletion, so that clients never see it as deleted. An ephemeral one is.
      const isEphemeral = row.auto_delete_m === 0;
      if (!isEphemeral) await setStopped(pool, row.id, principal.projectId, true);
      await deleteSandbox(context, row.id, principal.projectId);
      if (isEphemeral) return destroyed(row, principal.orgId);
      await limitStopped(pool, [row.id]);
    }
    const stopped = await waitForResult(
      row.id,
      watch,
      principal,
      (state) => state === 'stopping',
      abortSignal,
    );
    return toSandbox(stopped ?? row, principal.orgId);
  });

  compat.operation(operations.touchSandbox, async ({ params, principal }) => {
    const row = await find(params.id, principal);
    await touchSandbox(pool, row.id, principal.projectId);
    return toSandbox(await find(params.id, principal), principal.orgId);
  });

  compat.operation(operations.getToolboxProxyUrl, async ({ params, principal }) => ({
    url: toolboxUrl(await find(params.id, principal)),
  }));

  async function find(idOrName: string, { projectId }: Principal): Promise<DetailRow> {
    const row = await findSandbox(database, projectId, idOrName);
    if (row === undefined) throw sandboxNotFound(idOrName);
    return row;
  }

  /** Waits for a state that is not pending, so that the client needs no poll. Undefined when the sandbox is gone. */
  async function waitForResult(
    id: string,
    watch: ReturnType<ChangeNotifier['watch']>,
    { projectId }: Principal,
    isPending: (state: CompatSandboxState) => boolean,
    abortSignal: () => AbortSignal,
  ): Promise<DetailRow | undefined> {
    const until = performance.now() + COMPAT_LIMITS.resultMs;
    for (;;) {
      const row = await readSandbox(pool, projectId, { uuid: id, region: null });
      if (row === undefined || !isPending(row.state)) return row;
      const left = Math.ceil(until - performance.now());
      if ((await watch.next(left, abortSignal())) !== 'changed') return row;
    }
  }
}
