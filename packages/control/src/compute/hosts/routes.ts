/** Operator operations on hosts. */
import {
  badRequest,
  cleanName,
  HOST_NAME_CHARS,
  isUuid,
  operatorOperations,
  clampLimit,
  decodeKeyCursor,
  encodeKeyCursor,
  LIST_CURSORS,
  quote,
} from '@releap/contract';
import type { Planes } from '../../platform/http/planes.ts';
import type { Overcommit } from '../scheduler/overcommit.ts';
import type { Scheduler } from '../scheduler/scheduler.ts';
import { unknownClasses } from '../../fleet/classes/host-classes.ts';
import { setClasses, setName } from '../../fleet/runners/operator-marks.ts';
import { beginDrain, endDrain, remaining } from './drain.ts';
import { evictAll, evictOne } from './evict.ts';
import { forgetHost, type ForgetContext } from './forget.ts';
import type { Moves } from '../moves/moves.ts';
import { hostMoves, hostNotFound, hostRecord, hostRecords } from './queries.ts';

export interface HostRoutes extends ForgetContext {
  limits: ForgetContext['limits'] & { overcommit: Overcommit };
  moves: Moves;
  scheduler: Scheduler;
}

export function hostRoutes({ operator }: Planes, context: HostRoutes): void {
  const { database, scheduler } = context;
  const { overcommit } = context.limits;

  operator.operation(operatorOperations.listHosts, async ({ query }) => {
    const hosts = await hostRecords(database.pool, overcommit);
    if (query.limit === undefined && query.cursor === undefined) return { hosts };
    // They are few, and placement needs all of them anyway.
    const [after = ''] =
      query.cursor === undefined ? [] : decodeKeyCursor(LIST_CURSORS.hosts, query.cursor, 1);
    const rest = hosts.filter(({ id }) => id > after);
    const page = rest.slice(0, clampLimit(query.limit));
    const last = rest.length > page.length ? page.at(-1) : undefined;
    return {
      hosts: page,
      next_cursor: last === undefined ? null : encodeKeyCursor(LIST_CURSORS.hosts, [last.id]),
    };
  });

  operator.operation(operatorOperations.drainHost, async ({ params, body }) => {
    const id = hostId(params.id);
    const moved = await beginDrain(context, id, { force: body.force ?? false, move: body.move ?? false });
    return {
      host: await hostRecord(database.pool, overcommit, id),
      moved,
      remaining: await remaining(database, id),
    };
  });

  operator.operation(operatorOperations.listHostMoves, async ({ params }) => {
    const { id } = await hostRecord(database.pool, overcommit, hostId(params.id));
    return { moves: await hostMoves(database.pool, id) };
  });

  operator.operation(operatorOperations.undrainHost, async ({ params }) => {
    const id = hostId(params.id);
    await endDrain(database, id);
    context.moves.kick();
    scheduler.capacityReleased();
    return { host: await hostRecord(database.pool, overcommit, id) };
  });

  operator.operation(operatorOperations.setHostClasses, async ({ params, body }) => {
    const id = hostId(params.id);
    const { facts } = await hostRecord(database.pool, overcommit, id);
    const slugs = Object.fromEntries(Object.entries(body).filter(([, slug]) => slug !== null));
    const [unknown] = await unknownClasses(database.pool, slugs, facts.arch);
    if (unknown !== undefined)
      throw badRequest(
        `${unknown.kind} ${quote(unknown.slug)} does not exist for ${facts.arch}, which host ${id} has`,
      );
    if (!(await setClasses(database.pool, id, body))) throw hostNotFound(id);
    scheduler.capacityReleased();
    return { host: await hostRecord(database.pool, overcommit, id) };
  });

  operator.operation(operatorOperations.setHostName, async ({ params, body }) => {
    const id = hostId(params.id);
    const name = body.name === null ? null : cleanName(body.name, 'name', HOST_NAME_CHARS);
    if (!(await setName(database.pool, id, name))) throw hostNotFound(id);
    return { host: await hostRecord(database.pool, overcommit, id) };
  });

  operator.operation(operatorOperations.evictFromHost, async ({ params, body }) => {
    const id = hostId(params.id);
    await hostRecord(database.pool, overcommit, id);
    return body.vm_id === undefined ? evictAll(context, id) : evictOne(context, body.vm_id, id);
  });

  operator.operation(operatorOperations.evictSandbox, ({ params }) => evictOne(context, params.id, null));

  operator.operation(operatorOperations.forgetHost, ({ params }) => forgetHost(context, hostId(params.id)));
}

/** @throws 404 for an invalid host id */
function hostId(text: string): string {
  const id = text.toLowerCase();
  if (!isUuid(id)) throw hostNotFound(id);
  return id;
}
