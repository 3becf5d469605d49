/** Records every call of an operator operation: a change before it is done and its outcome, a read with its outcome. */
import { ApiError, newUuid, type Operation, operatorOperations } from '@releap/contract';
import { queryAll, statement, type Database } from '@releap/database';
import type { FastifyRequest } from 'fastify';
import type { Handler, Plane } from '../../platform/http/plane.ts';

type Outcome = 'done' | 'refused' | 'failed';

/** $7 and $8: null for a change that begins. */
const WRITE = statement(
  'operator-audit-write',
  `insert into operator_audit (id, operation, subject, request, ip, request_id, outcome, error)
   values ($1, $2, $3, $4::jsonb, $5, $6, $7, $8)`,
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

/**
 * Wraps the plane so that each call is audited. A call that cannot be recorded is refused; a change that was done is answered
 * as done, whether or not its outcome can be recorded.
 */
export function audited(plane: Plane<'operator'>, database: Database): Plane<'operator'> {
  return {
    plugin: plane.plugin,
    operation(operation, handler) {
      if (UNRECORDED.has(operation)) {
        plane.operation(operation, handler);
        return;
      }
      const recorded = async (call: Parameters<typeof handler>[0]): Promise<unknown> => {
        const isRead = operation.method === 'GET';
        const id = isRead ? undefined : await record(operation, call.request, null, null);
        const end = async (outcome: Outcome, error: string | null): Promise<void> => {
          if (id === undefined) await record(operation, call.request, outcome, error);
          else await queryAll(database.pool, END, [id, outcome, error]);
        };
        const logFailure = (error: unknown): void =>
          call.request.log.error({ err: error, audit: id }, 'an outcome could not be recorded in the audit');
        let answer: unknown;
        try {
          answer = await handler(call);
        } catch (error) {
          const outcome = error instanceof ApiError && error.status < 500 ? 'refused' : 'failed';
          await end(outcome, (error as Error).message.slice(0, 1000)).catch(logFailure);
          throw error;
        }
        // Nothing is shown without a record of it; what has been changed is not undone by a refusal.
        await (isRead ? end('done', null) : end('done', null).catch(logFailure));
        return answer;
      };
      plane.operation(operation, recorded as Handler<typeof operation>);
    },
  };

  async function record(
    operation: Operation,
    request: FastifyRequest,
    outcome: Outcome | null,
    error: string | null,
  ): Promise<string> {
    const id = newUuid();
    const subject = Object.values(request.params as Record<string, string>).join('/') || null;
    const details = { ...(request.query as object), ...shown(operation, request.body) };
    await queryAll(database.pool, WRITE, [
      id,
      NAMES.get(operation) ?? `${operation.method} ${operation.path}`,
      subject,
      JSON.stringify(details),
      request.ip,
      request.id,
      outcome,
      error,
    ]);
    return id;
  }
}

/** The body of a request, without what must never be shown. */
function shown({ body: schema }: Operation, body: unknown): object {
  const { properties = {} } = (schema ?? {}) as { properties?: Record<string, { writeOnly?: boolean }> };
  return Object.fromEntries(
    Object.entries(body ?? {}).filter(([name]) => properties[name]?.writeOnly !== true),
  );
}
