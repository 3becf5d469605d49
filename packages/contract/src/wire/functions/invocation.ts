/**
 * Calls of functions: those whose callers wait for the answer, which gateways serve and the control plane passes on to them;
 * and those that no client waits for. All are recorded as invocations.
 */
import { Type, type Static } from 'typebox';
import { nullable, UNKNOWN_ID } from '../platform/fields.ts';
import { BOUNDS } from '../platform/limits.ts';
import type { ApiResource, Operation } from '../platform/operation.ts';
import { FunctionParams } from './function.ts';

export const INVOCATION_STATUSES = ['pending', 'running', 'succeeded', 'failed', 'timeout', 'shed'] as const;
export const InvocationStatus = Type.Enum(INVOCATION_STATUSES, {
  description:
    '`pending`: it waits for a server. `running`: it waits for an instance, or its handler runs. `succeeded`: the handler ' +
    'answered with a status below 400. `failed`: `error` says why. `timeout`: the handler took longer than `timeout_s`. `shed`: no ' +
    'instance had capacity in time.',
});
export type InvocationStatus = Static<typeof InvocationStatus>;

export const INVOCATION_SOURCES = ['invoke', 'public', 'spawn', 'map', 'schedule'] as const;
export type InvocationSource = (typeof INVOCATION_SOURCES)[number];

const Time = (description: string) => Type.String({ format: 'date-time', description });

/** Fields that the log of invocations has too. */
export const INVOCATION_FIELDS = {
  id: Type.String({ format: 'uuid' }),
  version: nullable(Type.Integer(), 'The version that served it; null while none did.'),
  status: InvocationStatus,
  queued_at: Time('When the service received it. It identifies the bucket that it is counted in.'),
  finished_at: nullable(Time('When it ended.'), 'Null until it has ended.'),
  duration_ms: nullable(
    Type.Number({ minimum: 0 }),
    'How long the handler took: what is charged. Null when no handler answered.',
  ),
  cold: nullable(Type.Boolean(), 'Whether an instance was started for it. Null when it reached none.'),
  error: nullable(Type.String(), 'Why it did not succeed, or why the result of one that did is not kept.'),
};

export const InvocationRecord = Type.Object({
  ...INVOCATION_FIELDS,
  result: Type.Optional(
    Type.Unknown({
      description: `The body of the handler's response as it sent it, of a succeeded invocation, if it is JSON of at most ${BOUNDS.invocationResultBytes / 1024} KiB and the organization has stored bytes left for it. Absent otherwise.`,
    }),
  ),
  done: Type.Boolean({ description: 'Whether it has ended.' }),
});
export type InvocationRecord = Static<typeof InvocationRecord>;

export const InvocationParams = Type.Object({ id: Type.String({ description: 'Invocation id.' }) });

export const SpawnResponse = Type.Object({
  invocation_id: Type.String({ format: 'uuid' }),
  status: Type.Literal('pending'),
});
export type SpawnResponse = Static<typeof SpawnResponse>;

export const MapRequest = Type.Object({
  payloads: Type.Array(Type.Unknown(), {
    minItems: 1,
    maxItems: BOUNDS.mapPayloads,
    description:
      'Any JSON values, at most 1,000 levels deep. Each is the body of one invocation, with the content type `application/json`. ' +
      'Numbers are read as double-precision: send larger integers as strings.',
  }),
});
export type MapRequest = Static<typeof MapRequest>;

export const MapResponse = Type.Object({
  invocation_ids: Type.Array(Type.String({ format: 'uuid' }), {
    description: 'In the order of the payloads.',
  }),
  count: Type.Integer(),
});
export type MapResponse = Static<typeof MapResponse>;

const MIB = 1024 * 1024;
const tooLarge = `The body has more than ${BOUNDS.invocationPayloadBytes / MIB} MiB, or is malformed.`;

const gatewayCall = {
  server: 'gateway',
  consumes: ['*/*'],
  upload: { bytes: BOUNDS.invocationPayloadBytes },
} as const;
const gatewayErrors = {
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
    ...gatewayCall,
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
      ...gatewayErrors,
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
    ...gatewayCall,
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
      ...gatewayErrors,
    },
  },
} as const satisfies Record<string, Operation>;

export const functionInvokeResource = {
  tags: {},
  operations: functionInvokeOperations,
  schemas: {},
} as const satisfies ApiResource;

const noVersion = 'The project has no function of this name, or the image of its first version is not built.';

export const invocationOperations = {
  spawnInvocation: {
    method: 'POST',
    path: '/fns/:name/spawn',
    tag: 'Invocations',
    summary: 'Call a function without waiting for it',
    description:
      'The handler gets the body and the headers of the request, as that of a synchronous call does. The invocation is stored before the response, ' +
      'and is run at least once, whatever process dies.',
    security: 'workload',
    params: FunctionParams,
    consumes: ['*/*'],
    body: Type.Unknown(),
    upload: { bytes: BOUNDS.invocationPayloadBytes },
    idempotent: true,
    success: { status: 200, response: { description: 'Stored.', schema: SpawnResponse } },
    codes: ['function_version_not_found', 'quota_exceeded'],
    errors: {
      400: `The body has more than ${BOUNDS.invocationPayloadBytes / MIB} MiB, or its content type or headers are too long.`,
      404: noVersion,
    },
  },
  mapInvocations: {
    method: 'POST',
    path: '/fns/:name/map',
    tag: 'Invocations',
    summary: 'Call a function once for each of many payloads',
    description: `All are stored, or none. The request has at most ${BOUNDS.requestBodyBytes / MIB} MiB in total.`,
    security: 'workload',
    params: FunctionParams,
    body: MapRequest,
    idempotent: true,
    success: { status: 200, response: { description: 'Stored.', schema: MapResponse } },
    codes: ['function_version_not_found', 'quota_exceeded'],
    errors: {
      400: `There are no payloads or more than ${BOUNDS.mapPayloads}, or one of them has more than ${BOUNDS.invocationPayloadBytes / MIB} MiB.`,
      404: noVersion,
    },
  },
  getInvocation: {
    method: 'GET',
    path: '/invocations/:id',
    tag: 'Invocations',
    summary: 'Read an invocation',
    security: 'workload',
    params: InvocationParams,
    success: { status: 200, response: { description: 'The record.', schema: InvocationRecord } },
    errors: { 404: UNKNOWN_ID },
  },
} as const satisfies Record<string, Operation>;

export const invocationResource = {
  tags: { Invocations: 'Calls of functions: those that no client waits for, and the record of all.' },
  operations: invocationOperations,
  schemas: { Invocation: InvocationRecord, Spawned: SpawnResponse, MapRequest, Mapped: MapResponse },
} as const satisfies ApiResource;

/**
 * Headers of calls of functions at a gateway: `POST /fns/{name}/invoke` with an API key, `POST /fn/{project}/{name}` at a public
 * endpoint. The body goes to the handler, and its answer comes back, as they are. The response to a call with a key is 200 whenever
 * the handler has answered; any other status is the gateway's.
 *
 * The first ones are headers of responses. Id of the invocation:
 */
export const INVOCATION_ID_HEADER = 'x-rlp-invocation-id';
/** The handler's own status. */
export const FUNCTION_STATUS_HEADER = 'x-rlp-fn-status';
/** `1` when the call has waited for an instance to start, otherwise `0`. */
export const FUNCTION_COLD_HEADER = 'x-rlp-cold';
/** Number of the version that has answered. */
export const FUNCTION_VERSION_HEADER = 'x-rlp-fn-version';
/**
 * How long the handler took until its answer began, in milliseconds; with an error how long it had the call. Absent when the handler
 * did not get it.
 */
export const FUNCTION_DURATION_HEADER = 'x-rlp-duration-ms';
/** `1` with an error: the connection to the handler ended before its answer was complete. */
export const FUNCTION_BROKEN_HEADER = 'x-rlp-fn-broken';

/**
 * Of requests of the control plane, which also says the invocation's id and records it itself: with `wait` the time in the queue
 * counts only while there is no instance.
 */
export const FUNCTION_QUEUE_HEADER = 'x-rlp-queue';
/** The number of the attempt, of the same requests: the gateway reports with it what runs for long. */
export const INVOCATION_ATTEMPT_HEADER = 'x-rlp-invocation-attempt';

/** Headers of this prefix are the service's: no client and no handler sets them. */
export const SERVICE_HEADER_PREFIX = 'x-rlp-';
