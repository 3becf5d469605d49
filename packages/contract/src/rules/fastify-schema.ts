/** The schemas of an operation in the form that Fastify takes. */
import type { TSchema } from 'typebox';
import type { Operation } from '../wire/operation.ts';

export interface FastifySchema {
  params?: TSchema;
  querystring?: TSchema;
  body?: TSchema;
  response?: Record<number, TSchema>;
}

/** What a Fastify route takes as `schema`. Only JSON answers are named, so that text passes through untouched. */
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
