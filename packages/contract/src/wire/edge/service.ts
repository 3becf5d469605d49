/** The operations on the service itself. */
import { Type } from 'typebox';
import { ErrorBody, OverloadBody } from '../platform/errors.ts';
import type { ApiResource, Operation } from '../platform/operation.ts';

/** The documents of `GET /openapi.json`. */
export const OPENAPI_PLANES = ['api', 'operator', 'compat'] as const;
export type OpenApiPlane = (typeof OPENAPI_PLANES)[number];

export const serviceOperations = {
  getHealth: {
    method: 'GET',
    path: '/healthz',
    tag: 'Service',
    summary: 'Check whether a sandbox can be created',
    security: 'public',
    rateLimited: false,
    success: {
      status: 200,
      response: { description: 'It can.', schema: Type.Object({ status: Type.String() }) },
    },
    errors: { 503: 'No sandbox can be created now, or the server is stopping.' },
  },
  getLiveness: {
    method: 'GET',
    path: '/livez',
    tag: 'Service',
    summary: 'Is the server alive?',
    description: 'Liveness: for a supervisor that restarts a server that hangs.',
    security: 'public',
    rateLimited: false,
    success: {
      status: 200,
      response: { description: 'It answers.', schema: Type.Object({ status: Type.Literal('ok') }) },
    },
    errors: {},
  },
  getReadiness: {
    method: 'GET',
    path: '/readyz',
    tag: 'Service',
    summary: 'Check whether the server can handle API requests',
    description:
      'Readiness, for load balancers: the database is reachable. `/healthz` checks whether a sandbox can be created.',
    security: 'public',
    rateLimited: false,
    success: {
      status: 200,
      response: { description: 'It can.', schema: Type.Object({ status: Type.Literal('ok') }) },
    },
    errors: { 503: 'The database cannot be reached, or the server is stopping.' },
  },
  getOpenApi: {
    method: 'GET',
    path: '/openapi.json',
    tag: 'Service',
    summary: 'This API as an OpenAPI 3.1 document',
    description: '[clients.md](clients.md) describes what it has for generators of clients.',
    security: 'public',
    query: Type.Object({
      plane: Type.Optional(
        Type.Enum(OPENAPI_PLANES, {
          default: 'api',
          description:
            "`api`: what clients use. `operator`: the operator's, on the internal listener. `compat`: the compatibility facade.",
        }),
      ),
    }),
    success: {
      status: 200,
      response: {
        description: 'The document.',
        schema: Type.Object({ openapi: Type.String() }, { additionalProperties: true }),
      },
    },
    errors: { 400: 'There is no such plane.' },
  },
} as const satisfies Record<string, Operation>;

export const serviceResource = {
  tags: { Service: 'The service itself.' },
  operations: serviceOperations,
  schemas: { Error: ErrorBody, Overload: OverloadBody },
} as const satisfies ApiResource;
