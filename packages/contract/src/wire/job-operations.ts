/** The operations on jobs. */
import { Type } from 'typebox';
import { JobLogQuery, JobParams, JobRecord } from './job.ts';
import type { Operation, ApiResource } from './platform/operation.ts';

const unknownJob = 'The id is unknown, malformed or of another project.';

export const jobOperations = {
  getJob: {
    method: 'GET',
    path: '/jobs/:id',
    tag: 'Jobs',
    summary: 'Read a job',
    security: 'workload',
    params: JobParams,
    success: { status: 200, response: { description: 'The record.', schema: JobRecord } },
    errors: { 404: unknownJob },
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
      404: `${unknownJob} Or the job has no log: it is not a build, or it has not started.`,
      502: 'The machine that runs the build did not respond.',
    },
  },
} as const satisfies Record<string, Operation>;

export const jobResource = {
  tags: { Jobs: 'The asynchronous work of creates.' },
  operations: jobOperations,
  schemas: { Job: JobRecord },
} as const satisfies ApiResource;
