/** The operations on jobs. */
import { JobParams, JobRecord } from './job.ts';
import type { Operation } from './operation.ts';
import type { ApiResource } from './resource.ts';

export const jobOperations = {
  getJob: {
    method: 'GET',
    path: '/jobs/:id',
    tag: 'Jobs',
    summary: 'Read a job',
    security: 'workload',
    params: JobParams,
    success: { status: 200, response: { description: 'The record.', schema: JobRecord } },
    errors: { 404: 'The id is unknown, malformed or of another project.' },
  },
} as const satisfies Record<string, Operation>;

export const jobResource = {
  tags: { Jobs: 'The asynchronous work of creates.' },
  operations: jobOperations,
  schemas: { Job: JobRecord },
} as const satisfies ApiResource;
