/** What is recorded of the calls of functions: their log, and numbers over it. */
import { Type, type Static } from 'typebox';
import { nullable } from '../platform/fields.ts';
import { BOUNDS, DEFAULTS, LIMITS } from '../platform/limits.ts';
import type { ApiResource, Operation } from '../platform/operation.ts';
import { CursorParam, nextPage, TimeParam } from '../platform/paging.ts';
import { FunctionParams } from './function.ts';
import { INVOCATION_FIELDS, INVOCATION_SOURCES, INVOCATION_STATUSES } from './invocation.ts';

const Time = (description: string) => Type.String({ format: 'date-time', description });
const Count = (description: string) => Type.Integer({ minimum: 0, description });
const Ms = (description: string) => nullable(Type.Number({ minimum: 0 }), description);

/** A filter. */
const version = (description: string) => Type.Integer({ minimum: 0, maximum: BOUNDS.int32, description });

const source = (description: string) => Type.Enum(INVOCATION_SOURCES, { description });

export const InvocationLogItem = Type.Object({
  ...INVOCATION_FIELDS,
  source: source(
    'What has called: a synchronous call with a key, the public endpoint, a spawn, a map, or a schedule.',
  ),
});
export type InvocationLogItem = Static<typeof InvocationLogItem>;

export const InvocationLogQuery = Type.Object({
  status: Type.Optional(Type.Enum(INVOCATION_STATUSES, { description: 'Only those with this status.' })),
  version: Type.Optional(version('Only those that this version served.')),
  source: Type.Optional(source('Only those of this kind of call.')),
  from: Type.Optional(TimeParam('Only those received at this time or later. RFC 3339.')),
  to: Type.Optional(TimeParam('Only those received before this time. RFC 3339.')),
  limit: Type.Optional(
    Type.Integer({
      default: DEFAULTS.pageSize,
      description: `Items a page. Clamped to ${LIMITS.pageMin}..${LIMITS.invocationPageMax}.`,
    }),
  ),
  offset: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: BOUNDS.int32,
      default: 0,
      description: 'How many newer ones are skipped.',
    }),
  ),
  cursor: Type.Optional(CursorParam),
});

export const InvocationLog = Type.Object({
  invocations: Type.Array(InvocationLogItem, { description: 'Newest first.' }),
  limit: Type.Integer({ description: 'As it was applied.' }),
  offset: Type.Integer(),
  ...nextPage,
});
export type InvocationLog = Static<typeof InvocationLog>;

export const FunctionLogQuery = Type.Object({
  follow: Type.Optional(
    Type.Boolean({
      default: false,
      description: 'Keep the response open and send new output, also of instances that start later.',
    }),
  ),
  version: Type.Optional(version('Only instances of this version.')),
});

const FROM_INCLUSIVE = 'RFC 3339, inclusive.';
const ToParam = TimeParam('RFC 3339, exclusive. Default now.');
const range = { from: Time('Inclusive.'), to: Time('Exclusive.') };

export const FunctionSeriesQuery = Type.Object({
  resolution: Type.Optional(
    Type.Enum(['h', 'd'] as const, { description: 'Hours or days. Default h.', default: 'h' }),
  ),
  from: Type.Optional(TimeParam(`${FROM_INCLUSIVE} Default 24 hours before \`to\`, with days 30 days.`)),
  to: Type.Optional(ToParam),
});

const total = Count('All that were received, those that have not ended included.');
const cold = Count('An instance was started for them.');
const warm = Count('An instance ran already.');
const shed = Count('No instance had capacity in time.');

const FunctionSeriesPoint = Type.Object({
  bucket: Time('Start of the hour or day, UTC.'),
  total,
  succeeded: Count('The handler answered with a status below 400.'),
  errors: Count('Failed, or took longer than `timeout_s`.'),
  shed,
  cold,
  warm,
  avg_ms: Ms('Mean duration; null when no handler answered.'),
});
export type FunctionSeriesPoint = Static<typeof FunctionSeriesPoint>;

export const FunctionSeries = Type.Object({
  resolution: Type.Enum(['h', 'd'] as const),
  ...range,
  points: Type.Array(FunctionSeriesPoint, {
    description: 'Oldest first. A bucket without invocations is absent.',
  }),
});
export type FunctionSeries = Static<typeof FunctionSeries>;

export const FunctionReportQuery = Type.Object({
  from: Type.Optional(TimeParam(`${FROM_INCLUSIVE} Default 24 hours before \`to\`.`)),
  to: Type.Optional(ToParam),
  fn: Type.Optional(Type.String({ description: 'Only the function of this name.' })),
});

const FunctionReportItem = Type.Object({
  name: Type.String(),
  total,
  succeeded: Count('The handler answered with a status below 400.'),
  failed: Count('The handler answered with 400 or above, or could not be reached.'),
  timeout: Count('The handler took longer than `timeout_s`.'),
  shed,
  cold,
  warm,
  cold_ratio: nullable(
    Type.Number({ minimum: 0, maximum: 1 }),
    'Share of cold ones among those that reached an instance; null when none did.',
  ),
  avg_ms: Ms('Mean duration; null when no handler answered.'),
  p50_ms: Ms('Percentiles of the durations are exact, interpolated between the two nearest ones.'),
  p95_ms: Ms('See `p50_ms`.'),
  p99_ms: Ms('See `p50_ms`.'),
  sum_ms: Type.Number({ minimum: 0, description: 'Sum of the durations.' }),
});
export type FunctionReportItem = Static<typeof FunctionReportItem>;

export const FunctionReport = Type.Object({
  ...range,
  billed_credits: Type.String({
    description: 'What these invocations cost, as a decimal, at the prices of when each ended.',
  }),
  functions: Type.Array(FunctionReportItem, {
    description: 'By name. Functions without invocations in the range are absent.',
  }),
});
export type FunctionReport = Static<typeof FunctionReport>;

const unknownFunction = 'The project has no function of this name.';
const Text = Type.String();
const invalidRange = 'A time is not RFC 3339, or the range is empty or too long.';

export const invocationLogOperations = {
  listInvocations: {
    method: 'GET',
    path: '/fns/:name/invocations',
    tag: 'Function numbers',
    summary: 'List the invocations of a function, newest first',
    description:
      'Of every kind: synchronous, public, spawned, mapped and scheduled ones. Follow `next_cursor`, which is there with `limit` or ' +
      '`cursor`: later pages cost as much as the first. `offset` is for single pages, and not together with `cursor`.',
    security: 'workload',
    params: FunctionParams,
    query: InvocationLogQuery,
    items: 'invocations',
    success: { status: 200, response: { description: 'One page.', schema: InvocationLog } },
    errors: {
      400: 'A filter, `limit`, `offset` or `cursor` is malformed, or `offset` is given with `cursor`.',
      404: unknownFunction,
    },
  },
  getFunctionLog: {
    method: 'GET',
    path: '/fns/:name/logs',
    tag: 'Function numbers',
    summary: 'Read what the handlers of a function have printed',
    description:
      'Standard output and error of its newest 20 instances, running ones and, for about an hour, ended ones, and those that tried a new ' +
      'version; the oldest first. Each line begins with the version and the instance: `[v3 1f0c9a2e] …`.',
    security: 'workload',
    params: FunctionParams,
    query: FunctionLogQuery,
    success: {
      status: 200,
      response: { description: 'The output.', schema: Text, contentType: 'text/plain' },
    },
    errors: { 400: 'A query parameter is malformed.', 404: unknownFunction },
  },
  getFunctionSeries: {
    method: 'GET',
    path: '/fns/:name/usage/series',
    tag: 'Function numbers',
    summary: 'Read how often a function was called, by hour or day',
    security: 'workload',
    params: FunctionParams,
    query: FunctionSeriesQuery,
    success: { status: 200, response: { description: 'The buckets.', schema: FunctionSeries } },
    errors: { 400: `${invalidRange} Or the resolution is unknown.`, 404: unknownFunction },
  },
  getFunctionReport: {
    method: 'GET',
    path: '/fns/usage/report',
    tag: 'Function numbers',
    summary: 'Read counts, durations and cost of the functions of the project',
    security: 'workload',
    query: FunctionReportQuery,
    success: { status: 200, response: { description: 'The report.', schema: FunctionReport } },
    errors: { 400: invalidRange },
  },
} as const satisfies Record<string, Operation>;

export const invocationLogResource = {
  tags: { 'Function numbers': 'What is recorded of the calls of functions, and numbers over it.' },
  operations: invocationLogOperations,
  schemas: { InvocationLog, FunctionSeries, FunctionReport },
} as const satisfies ApiResource;
