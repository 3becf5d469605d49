import type { EgressDenial } from '@releap/contract';
import type { FastifyInstance } from 'fastify';

/** `GET /vms/:id/egress/denied`: all that the log has, newest first. 404 for a sandbox that this host does not have. */
export function registerDeniedEgress(
  app: FastifyInstance,
  read: (vmId: string) => Promise<EgressDenial[] | undefined>,
): void {
  app.get<{ Params: { id: string } }>('/vms/:id/egress/denied', async (request, reply) => {
    const denied = await read(request.params.id);
    if (denied !== undefined) return { denied };
    return await reply.code(404).send({ error: `sandbox ${request.params.id} is not on this host` });
  });
}
