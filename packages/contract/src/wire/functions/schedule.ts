/** Schedules on the wire: cron expressions that call functions. */
import { Type, type Static } from 'typebox';
import { nullable, UpdatedAt } from '../platform/fields.ts';
import { BOUNDS } from '../platform/limits.ts';
import type { ApiResource, Operation } from '../platform/operation.ts';
import { nextPage, OptionalPageQuery } from '../platform/paging.ts';
import { FunctionParams } from './function.ts';

const nullableTime = (description: string) => nullable(Type.String({ format: 'date-time' }), description);

const nextRunAt = nullableTime('When it fires next. Null while it is not enabled.');

export const ScheduleCreateRequest = Type.Object({
  cron: Type.String({
    maxLength: BOUNDS.cronChars,
    description:
      'Five fields in UTC: minute, hour, day of month, month, day of week. If both days are given, either of them fires.',
  }),
  payload: Type.Optional(
    Type.Unknown({
      default: null,
      description: 'Any JSON, at most 1,000 levels deep. The body of each invocation.',
    }),
  ),
  enabled: Type.Optional(Type.Boolean({ default: true, description: 'Whether it fires.' })),
});
export type ScheduleCreateRequest = Static<typeof ScheduleCreateRequest>;

export const ScheduleCreateResponse = Type.Object({
  id: Type.String({ format: 'uuid' }),
  cron: Type.String(),
  enabled: Type.Boolean(),
  next_run_at: nextRunAt,
});
export type ScheduleCreateResponse = Static<typeof ScheduleCreateResponse>;

export const ScheduleRecord = Type.Object({
  id: Type.String({ format: 'uuid' }),
  cron: Type.String(),
  payload: Type.Unknown(),
  enabled: Type.Boolean(),
  next_run_at: nextRunAt,
  last_run_at: nullableTime('When it fired last. Null while it never has.'),
  created_at: Type.Optional(Type.String({ format: 'date-time' })),
  updated_at: Type.Optional(UpdatedAt),
});
export type ScheduleRecord = Static<typeof ScheduleRecord>;

/** Absent fields stay as they are. */
export const ScheduleUpdate = Type.Object(
  {
    cron: Type.Optional(ScheduleCreateRequest.properties.cron),
    payload: Type.Optional(
      Type.Union([Type.Unknown(), Type.Null()], { description: 'Any JSON, also null.' }),
    ),
    enabled: Type.Optional(
      Type.Boolean({
        description:
          'Whether it fires. One that is enabled again fires at its next time, not for those that have passed.',
      }),
    ),
  },
  { minProperties: 1, expected: 'an object with cron, payload or enabled' },
);
export type ScheduleUpdate = Static<typeof ScheduleUpdate>;

export const ScheduleList = Type.Object({ schedules: Type.Array(ScheduleRecord), ...nextPage });
export type ScheduleList = Static<typeof ScheduleList>;

export const ScheduleParams = Type.Object({
  name: Type.String({ description: 'Name of a function.' }),
  id: Type.String({ description: 'Schedule id.' }),
});

const unknownFunction = 'The project has no function of this name.';

export const scheduleOperations = {
  createSchedule: {
    method: 'POST',
    path: '/fns/:name/schedules',
    tag: 'Schedules',
    summary: 'Call a function at the times of a cron expression',
    description:
      'Each fire is an invocation as of a spawn, whatever the number of servers. Fires that no server was there for are made up for by one.',
    security: 'workload',
    params: FunctionParams,
    body: ScheduleCreateRequest,
    idempotent: true,
    success: { status: 200, response: { description: 'Created.', schema: ScheduleCreateResponse } },
    codes: ['limit_reached'],
    errors: {
      400: `The expression is not valid, or never fires; the function has ${BOUNDS.schedulesPerFunction} schedules already.`,
      404: unknownFunction,
    },
  },
  listSchedules: {
    method: 'GET',
    path: '/fns/:name/schedules',
    tag: 'Schedules',
    summary: 'List the schedules of a function, newest first',
    security: 'workload',
    params: FunctionParams,
    query: OptionalPageQuery,
    items: 'schedules',
    success: { status: 200, response: { description: 'One page, or all of them.', schema: ScheduleList } },
    errors: { 404: unknownFunction },
  },
  updateSchedule: {
    method: 'PATCH',
    path: '/fns/:name/schedules/:id',
    tag: 'Schedules',
    summary: 'Change a schedule, pause it or let it fire again',
    description: 'In place: its id and its invocations stay.',
    security: 'workload',
    params: ScheduleParams,
    body: ScheduleUpdate,
    success: { status: 200, response: { description: 'As it is from now on.', schema: ScheduleRecord } },
    errors: {
      400: 'The expression is not valid, or never fires; nothing is to be changed.',
      404: `${unknownFunction} Or the function has no such schedule.`,
    },
  },
  deleteSchedule: {
    method: 'DELETE',
    path: '/fns/:name/schedules/:id',
    tag: 'Schedules',
    summary: 'Delete a schedule',
    description: 'Invocations that it has made are run.',
    security: 'workload',
    params: ScheduleParams,
    success: { status: 204, response: { description: 'Deleted.' } },
    errors: { 404: `${unknownFunction} Or the function has no such schedule.` },
  },
} as const satisfies Record<string, Operation>;

export const scheduleResource = {
  tags: { Schedules: 'Cron expressions that call functions.' },
  operations: scheduleOperations,
  schemas: {
    ScheduleCreate: ScheduleCreateRequest,
    ScheduleCreated: ScheduleCreateResponse,
    Schedule: ScheduleRecord,
    ScheduleUpdate,
    ScheduleList,
  },
} as const satisfies ApiResource;
