import { IdleTurn, sandboxNotFound } from '@releap/contract';
import type { FastifyInstance } from 'fastify';

export interface IdleSandbox {
  /** @throws ApiError 409 when it does not run, or after a thaw of another turn */
  freeze(turn: string): Promise<void>;
  /** @throws ApiError 409 when it does not run */
  thaw(turn: string): Promise<void>;
}

/** `POST /vms/:id/freeze` and `POST /vms/:id/thaw`, from the gateway that leases a function's instance (see `IdleTurn`). */
export function registerIdle(app: FastifyInstance, find: (vmId: string) => IdleSandbox | undefined): void {
  for (const operation of ['freeze', 'thaw'] as const) {
    app.post<{ Params: { id: string }; Body: IdleTurn }>(
      `/vms/:id/${operation}`,
      { schema: { body: IdleTurn } },
      async ({ params: { id }, body }) => {
        const sandbox = find(id);
        if (sandbox === undefined) throw sandboxNotFound(id);
        await sandbox[operation](body.turn);
        return {};
      },
    );
  }
}
