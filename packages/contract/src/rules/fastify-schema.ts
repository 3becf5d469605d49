/** The schemas of an operation, for Fastify. */
import type { TSchema } from 'typebox';
import type { Operation } from '../wire/platform/operation.ts';

export interface FastifySchema {
  params?: TSchema;
  querystring?: TSchema;
  body?: TSchema;
  response?: Record<number, TSchema>;
}

/** The `schema` of a Fastify route. Only JSON responses have one, so that text is not serialized. */
export function fastifySchema(operation: Operation): FastifySchema {
  const { status, response } = operation.success;
  return {
    ...(operation.params ? { params: operation.params } : {}),
    ...(operation.query ? { querystring: operation.query } : {}),
    ...(operation.body ? { body: operation.body } : {}),
    ...(response.schema && response.contentType === undefined
      ? { response: { [status]: response.schema } }
      : {}),
  };
}
