/** Operator operations on hosts. */
import { isUuid, operatorOperations } from '@releap/contract';
import type { Planes } from '../../platform/http/planes.ts';
import type { Overcommit } from '../scheduler/overcommit.ts';
import type { Scheduler } from '../scheduler/scheduler.ts';
import { beginDrain, endDrain, remaining } from './drain.ts';
import { evictAll, evictOne } from './evict.ts';
import { forgetHost, type ForgetContext } from './forget.ts';
import { hostNotFound, hostRecord, hostRecords } from './queries.ts';

export interface HostRoutes extends ForgetContext {
  limits: ForgetContext['limits'] & { overcommit: Overcommit };
  scheduler: Scheduler;
}

export function hostRoutes({ operator }: Planes, context: HostRoutes): void {
  const { database, scheduler } = context;
  const { overcommit } = context.limits;

  operator.operation(operatorOperations.listHosts, async () => ({
    hosts: await hostRecords(database.pool, overcommit),
  }));

  operator.operation(operatorOperations.drainHost, async ({ params, body }) => {
    const id = hostId(params.id);
    const moved = await beginDrain(context, id, body.force ?? false);
    return {
      host: await hostRecord(database.pool, overcommit, id),
      moved,
      remaining: await remaining(database, id),
    };
  });

  operator.operation(operatorOperations.undrainHost, async ({ params }) => {
    const id = hostId(params.id);
    await endDrain(database, id);
    scheduler.capacityReleased();
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
