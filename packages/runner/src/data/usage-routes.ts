import type { UsageOfRun } from '@releap/contract';
import type { FastifyInstance } from 'fastify';

/** `GET /vms/:id/usage`: what it has used in its present run. 404 when it does not run here. */
export function registerUsage(app: FastifyInstance, read: (vmId: string) => UsageOfRun | undefined): void {
  app.get<{ Params: { id: string } }>('/vms/:id/usage', async (request, reply) => {
    const usage = read(request.params.id);
    if (usage !== undefined) return usage;
    return await reply.code(404).send({ error: `sandbox ${request.params.id} does not run here` });
  });
}
