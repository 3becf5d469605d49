/** Invocations on the wire: calls of functions that are recorded. */
import { Type, type Static, type TSchema } from 'typebox';
import { BOUNDS } from './platform/limits.ts';

const nullable = <T extends TSchema>(schema: T, description: string) =>
  Type.Union([schema, Type.Null()], { description });

export const INVOCATION_STATUSES = ['pending', 'running', 'succeeded', 'failed', 'timeout', 'shed'] as const;
export const InvocationStatus = Type.Enum(INVOCATION_STATUSES, {
  description:
    '`pending`: it waits for a server. `running`: it waits for an instance, or its handler runs. `succeeded`: the handler ' +
    'answered with a status below 400. `failed`: `error` says why. `timeout`: the handler took longer than `timeout_s`. `shed`: no ' +
    'instance had capacity in time.',
});
export type InvocationStatus = Static<typeof InvocationStatus>;

export const INVOCATION_SOURCES = ['invoke', 'public', 'spawn', 'map', 'schedule'] as const;

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
