/** What an operator asks of hosts, under the internal token. Not part of the public API. */
import {
  HostDrainRequest,
  HostEvictRequest,
  HOSTS_PATH,
  isUuid,
  validate,
  type HostDrainResponse,
  type HostEvictResponse,
  type HostList,
  type HostUndrainResponse,
} from '@releap/contract';
import type { FastifyRequest } from 'fastify';
import type { App } from '../http/app.ts';
import { internalOnly } from '../http/internal-token.ts';
import type { Overcommit } from '../limits.ts';
import type { Scheduler } from '../scheduler/scheduler.ts';
import { beginDrain, endDrain, left, type DrainContext } from './drain.ts';
import { evict } from './evict.ts';
import { hostNotFound, hostRecord, hostRecords } from './queries.ts';

export interface HostRoutes extends DrainContext {
  scheduler: Scheduler;
  limits: { overcommit: Overcommit };
  internalToken: string;
}

export function hostRoutes(app: App, context: HostRoutes): void {
  const { database, scheduler } = context;
  const { overcommit } = context.limits;
  const onRequest = internalOnly(context.internalToken);
  const post = (verb: string, handler: (id: string, body: unknown) => Promise<unknown>): void => {
    app.fastify.route({
      method: 'POST',
      url: `${HOSTS_PATH}/:id/${verb}`,
      onRequest,
      handler: (request: FastifyRequest) => {
        const id = (request.params as { id: string }).id.toLowerCase();
        if (!isUuid(id)) throw hostNotFound(id);
        return handler(id, request.body);
      },
    });
  };

  app.fastify.route({
    method: 'GET',
    url: HOSTS_PATH,
    onRequest,
    handler: async (): Promise<HostList> => ({ hosts: await hostRecords(database.pool, overcommit) }),
  });

  post('drain', async (id, body): Promise<HostDrainResponse> => {
    const { force = false } = validate(HostDrainRequest, 'body', body);
    const did = await beginDrain(context, id, force);
    return { host: await hostRecord(database.pool, overcommit, id), did, left: await left(database, id) };
  });

  post('undrain', async (id): Promise<HostUndrainResponse> => {
    await endDrain(database, id);
    scheduler.capacityReleased();
    return { host: await hostRecord(database.pool, overcommit, id) };
  });

  post('evict', async (id, body): Promise<HostEvictResponse> => {
    const { vm_id } = validate(HostEvictRequest, 'body', body);
    await hostRecord(database.pool, overcommit, id);
    return evict(context, id, vm_id);
  });
}
