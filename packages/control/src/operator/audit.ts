/** Records every call of an operator operation: before it runs, and its outcome. */
import { ApiError, newUuid, type Operation, operatorOperations } from '@releap/contract';
import { queryAll, statement, type Database } from '@releap/database';
import type { FastifyRequest } from 'fastify';
import type { Handler, Plane } from '../http/plane.ts';

const BEGIN = statement(
  'operator-audit-begin',
  `insert into operator_audit (id, operation, subject, request, ip, request_id)
   values ($1, $2, $3, $4::jsonb, $5, $6)`,
);
const END = statement(
  'operator-audit-end',
  'update operator_audit set outcome = $2, error = $3 where id = $1',
);

const NAMES = new Map<Operation, string>(
  Object.entries(operatorOperations).map(([name, operation]) => [operation, name]),
);

/** Not audited: scraped every few seconds, also while the database is unavailable, and shows only counts. */
const UNRECORDED: ReadonlySet<Operation> = new Set([operatorOperations.getMetrics]);

/** Wraps the plane so that each call is audited. A call that cannot be recorded is refused. */
export function audited(plane: Plane<'operator'>, database: Database): Plane<'operator'> {
  return {
    plugin: plane.plugin,
    operation(operation, handler) {
      if (UNRECORDED.has(operation)) {
        plane.operation(operation, handler);
        return;
      }
      const recorded = async (call: Parameters<typeof handler>[0]): Promise<unknown> => {
        const id = await begin(operation, call.request);
        try {
          const answer = await handler(call);
          await end(id, 'done', null);
          return answer;
        } catch (error) {
          const refused = error instanceof ApiError && error.status < 500;
          await end(id, refused ? 'refused' : 'failed', (error as Error).message).catch(() => undefined);
          throw error;
        }
      };
      plane.operation(operation, recorded as Handler<typeof operation>);
    },
  };

  async function begin(operation: Operation, request: FastifyRequest): Promise<string> {
    const id = newUuid();
    const { id: subject = null } = request.params as { id?: string };
    const details = { ...(request.query as object), ...(request.body as object | null) };
    await queryAll(database.pool, BEGIN, [
      id,
      NAMES.get(operation) ?? `${operation.method} ${operation.path}`,
      subject,
      JSON.stringify(details),
      request.ip,
      request.id,
    ]);
    return id;
  }

  async function end(
    id: string,
    outcome: 'done' | 'refused' | 'failed',
    error: string | null,
  ): Promise<void> {
    await queryAll(database.pool, END, [id, outcome, error?.slice(0, 1000) ?? null]);
  }
}
