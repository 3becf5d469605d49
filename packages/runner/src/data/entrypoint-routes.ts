import type { EntrypointOfSandbox } from '@releap/contract';
import type { FastifyInstance } from 'fastify';
import type { EntrypointState } from '../guest/index.ts';

/** `GET /vms/:id/entrypoint`: whether the entrypoint of a running sandbox runs. 404 when it does not run here. */
export function registerEntrypoint(
  app: FastifyInstance,
  read: (vmId: string) => Promise<EntrypointState | undefined>,
): void {
  app.get<{ Params: { id: string } }>('/vms/:id/entrypoint', async (request, reply) => {
    const state = await read(request.params.id);
    if (state !== undefined) {
      const answer: EntrypointOfSandbox = {
        state: state.state,
        ...(state.exitCode === undefined ? {} : { exit_code: state.exitCode }),
        ...(state.reason === undefined ? {} : { reason: state.reason }),
      };
      return answer;
    }
    return await reply.code(404).send({ error: `sandbox ${request.params.id} does not run here` });
  });
}
