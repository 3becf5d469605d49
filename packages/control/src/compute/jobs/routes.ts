import { isUuid, jobNotFound, operations, type JobRecord } from '@releap/contract';
import { queryOne, statement, type Database } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';

const GET = statement<JobRecord>(
  'job-get',
  'select id, kind, status, attempts, error, runner_id from jobs where id = $1 and project_id = $2',
);

export function jobRoutes({ workload }: Planes, { database }: { database: Database }): void {
  workload.operation(operations.getJob, async ({ params, principal }): Promise<JobRecord> => {
    const job = isUuid(params.id)
      ? await queryOne(database.pool, GET, [params.id, principal.projectId])
      : undefined;
    if (job === undefined) throw jobNotFound(params.id);
    return job;
  });
}
