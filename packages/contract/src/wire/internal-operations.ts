/** The operations that runners and gateways use. They are not part of the public API and its OpenAPI document. */
import { RESOLVE_PATH, ResolveRequest, ResolveResponse } from './internal.ts';
import type { Operation } from './operation.ts';

export const internalOperations = {
  resolveSandbox: {
    method: 'POST',
    path: RESOLVE_PATH,
    tag: 'Gateway',
    summary: 'Find the host of a sandbox, for a client that shows a credential',
    security: 'internal',
    body: ResolveRequest,
    success: { status: 200, response: { description: 'Its host.', schema: ResolveResponse } },
    errors: {
      400: 'A field is not valid.',
      404: 'The sandbox is unknown to this credential, or deleted.',
      409: 'The sandbox is not running.',
    },
  },
} as const satisfies Record<string, Operation>;
