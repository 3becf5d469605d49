import { isUuid, jobNotFound, operations, type JobRecord } from '@releap/contract';
import { queryOne, statement, type Database } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';

type JobRow = Omit<JobRecord, 'created_at' | 'updated_at'> & { created_at: Date; updated_at: Date };

const GET = statement<JobRow>(
  'job-get',
  'select id, kind, status, attempts, error, runner_id, created_at, updated_at from jobs where id = $1 and project_id = $2',
);

export function jobRoutes({ workload }: Planes, { database }: { database: Database }): void {
  workload.operation(operations.getJob, async ({ params, principal }): Promise<JobRecord> => {
    const job = isUuid(params.id)
      ? await queryOne(database.pool, GET, [params.id, principal.projectId])
      : undefined;
    if (job === undefined) throw jobNotFound(params.id);
    const { created_at: created, updated_at: updated } = job;
    return { ...job, created_at: created.toISOString(), updated_at: updated.toISOString() };
  });
}
