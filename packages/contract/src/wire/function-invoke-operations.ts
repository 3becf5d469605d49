/** Calls of functions whose callers wait for the answer. Gateways serve them; the control plane passes them on. */
import { Type } from 'typebox';
import { FunctionParams } from './function.ts';
import { BOUNDS } from './platform/limits.ts';
import type { Operation, ApiResource } from './platform/operation.ts';

const shared = {
  server: 'gateway',
  consumes: ['*/*'],
  upload: { bytes: BOUNDS.invocationPayloadBytes },
} as const;
const tooLarge = `The body has more than ${BOUNDS.invocationPayloadBytes / (1024 * 1024)} MiB, or is malformed.`;
const errors = {
  402: 'The organization has no credits left.',
  429: 'No instance had capacity in time (about 30 seconds). `Retry-After` is 5.',
  502: 'The handler did not start, cannot be reached, closed the connection or did not answer with HTTP; the error says which.',
  503: 'No gateway answers, or it cannot reach the control plane.',
  504: 'The handler did not answer within `timeout_s`.',
} as const;

export const functionInvokeOperations = {
  invokeFunction: {
    method: 'POST',
    path: '/fns/:name/invoke',
    tag: 'Functions',
    summary: 'Call a function and wait for its answer',
    description:
      'The handler gets the body and the headers as they were sent, as `POST /`, without credentials of the service. Its answer ' +
      'is streamed back. The status is 200 whenever the handler has answered; headers of the response: `x-rlp-fn-status` (the status of ' +
      'the handler), `x-rlp-cold` (`1` when the call has waited for an instance to start, else `0`), `x-rlp-invocation-id`, ' +
      '`x-rlp-fn-version`. [functions.md](functions.md) has the details.',
    security: 'workload',
    params: FunctionParams,
    ...shared,
    success: {
      status: 200,
      response: { description: "The handler's answer.", schema: Type.Unknown(), contentType: '*/*' },
    },
    codes: [
      'function_version_not_found',
      'request_too_large',
      'quota_exceeded',
      'handler_failed',
      'handler_timeout',
    ],
    errors: {
      400: tooLarge,
      404: 'The project has no function of this name, or it has no current version.',
      ...errors,
    },
  },
  callPublicFunction: {
    method: 'POST',
    path: '/fn/:project/:name',
    tag: 'Functions',
    summary: 'Call the public endpoint of a function',
    description:
      'Like a call with an API key, but the status is that of the handler. With the token of the function as ' +
      '`Authorization: Bearer`, if it requires one. Any site may call it from a browser.',
    security: 'public',
    params: Type.Object({
      project: Type.String({ description: 'Id of a project.' }),
      name: Type.String({ description: 'Name of a function.' }),
    }),
    ...shared,
    success: {
      status: 200,
      response: { description: "The handler's answer.", schema: Type.Unknown(), contentType: '*/*' },
    },
    codes: [
      'function_not_found',
      'function_version_not_found',
      'request_too_large',
      'quota_exceeded',
      'handler_failed',
      'handler_timeout',
    ],
    errors: {
      400: tooLarge,
      401: 'The function requires a token, and this is none or another one.',
      404: 'There is no such function, or it is not public.',
      ...errors,
    },
  },
} as const satisfies Record<string, Operation>;

export const functionInvokeResource = {
  tags: {},
  operations: functionInvokeOperations,
  schemas: {},
} as const satisfies ApiResource;
