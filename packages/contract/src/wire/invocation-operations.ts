/** The operations on invocations that no client waits for. */
import { Type } from 'typebox';
import { FunctionParams } from './function.ts';
import { InvocationParams, InvocationRecord, MapRequest, MapResponse, SpawnResponse } from './invocation.ts';
import { BOUNDS } from './platform/limits.ts';
import type { Operation, ApiResource } from './platform/operation.ts';

const MIB = 1024 * 1024;
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
    errors: { 404: 'The id is unknown, malformed or of another project.' },
  },
} as const satisfies Record<string, Operation>;

export const invocationResource = {
  tags: { Invocations: 'Calls of functions: those that no client waits for, and the record of all.' },
  operations: invocationOperations,
  schemas: { Invocation: InvocationRecord, Spawned: SpawnResponse, MapRequest, Mapped: MapResponse },
} as const satisfies ApiResource;
