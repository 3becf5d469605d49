/** Jobs: the asynchronous work of creates. */
import { Type, type Static } from 'typebox';
import { HOST_STARTING, UNKNOWN_ID, UpdatedAt } from '../platform/fields.ts';
import type { ApiResource, Operation } from '../platform/operation.ts';

export const JOB_KINDS = ['build', 'vm.create', 'snapshot.create'] as const;
export const JobKind = Type.Enum(JOB_KINDS);
export type JobKind = Static<typeof JobKind>;

export const JOB_STATUSES = ['queued', 'running', 'done', 'failed'] as const;
export const JobStatus = Type.Enum(JOB_STATUSES);
export type JobStatus = Static<typeof JobStatus>;

export const JobParams = Type.Object({ id: Type.String({ description: 'Job id.' }) });

export const JobLogQuery = Type.Object({
  follow: Type.Optional(
    Type.Boolean({
      default: false,
      description: 'Keep the response open and send new output, until the build ends.',
    }),
  ),
});

export const JobRecord = Type.Object({
  id: Type.String({ format: 'uuid' }),
  // Open: later kinds must not break existing clients.
  kind: Type.String({ description: `One of ${JOB_KINDS.join(', ')}, or a later one.` }),
  status: JobStatus,
  attempts: Type.Integer({ description: 'How many times a machine has taken it up; 0 while it is queued.' }),
  error: Type.Union([Type.String(), Type.Null()], {
    description: 'Why it failed; of a build of a Dockerfile with the last lines of its log.',
  }),
  runner_id: Type.Optional(
    Type.Union([Type.String(), Type.Null()], { description: 'The machine that runs it.' }),
  ),
  created_at: Type.Optional(Type.String({ format: 'date-time' })),
  updated_at: Type.Optional(UpdatedAt),
});
export type JobRecord = Static<typeof JobRecord>;

export const jobOperations = {
  getJob: {
    method: 'GET',
    path: '/jobs/:id',
    tag: 'Jobs',
    summary: 'Read a job',
    security: 'workload',
    params: JobParams,
    success: { status: 200, response: { description: 'The record.', schema: JobRecord } },
    errors: { 404: UNKNOWN_ID },
  },
  getJobLog: {
    method: 'GET',
    path: '/jobs/:id/logs',
    tag: 'Jobs',
    summary: 'Read the log of a build',
    description:
      'Of a build that has ended it is the whole log while its machine has it, and afterwards the last 8 KiB. With `follow` the answer waits until a queued build starts.',
    security: 'workload',
    params: JobParams,
    query: JobLogQuery,
    success: {
      status: 200,
      response: { description: 'The log.', schema: Type.String(), contentType: 'text/plain' },
    },
    codes: ['log_not_found'],
    errors: {
      404: `${UNKNOWN_ID} Or the job has no log: it is not a build, or it has not started.`,
      502: 'The machine that runs the build did not respond.',
      503: HOST_STARTING,
    },
  },
} as const satisfies Record<string, Operation>;

export const jobResource = {
  tags: { Jobs: 'The asynchronous work of creates.' },
  operations: jobOperations,
  schemas: { Job: JobRecord },
} as const satisfies ApiResource;
