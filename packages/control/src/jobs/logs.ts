/**
 * `GET /jobs/:id/logs`: the log of a build, streamed from its host. The host keeps it for a while; its end is stored with
 * the job and stays as long as that.
 */
import type { Readable } from 'node:stream';
import { isUuid, jobNotFound, notFound, operations, quote, type JobStatus } from '@releap/contract';
import { queryOne, statement, type Database } from '@releap/database';
import type { Planes } from '../http/planes.ts';
import { logHeaders, type HostClient } from '../runners/host-client.ts';

/** $1 job, $2 project */
const WHERE = statement<{
  kind: string;
  status: JobStatus;
  runner_id: string | null;
  log_tail: string | null;
  data_url: string | null;
  connected: boolean | null;
}>(
  'job-log-where',
  `select j.kind, j.status, j.runner_id, j.log_tail, r.data_url, r.status = 'online' as connected
     from jobs j left join runners r on r.id = j.runner_id where j.id = $1 and j.project_id = $2`,
);

export function jobLogRoutes(
  { workload }: Planes,
  { database, hosts }: { database: Database; hosts: HostClient },
): void {
  workload.operation(
    operations.getJobLog,
    async ({ params, query, principal, reply, abortSignal }): Promise<Readable | string> => {
      const job = isUuid(params.id)
        ? await queryOne(database.pool, WHERE, [params.id, principal.projectId])
        : undefined;
      if (job === undefined) throw jobNotFound(params.id);
      const shown = `job ${quote(params.id)}`;
      if (job.kind !== 'build') throw notFound(`${shown} is of kind ${job.kind} and has no log`);
      const ended = job.status === 'done' || job.status === 'failed';
      const read = async (): Promise<Readable | undefined> =>
        job.runner_id === null || job.data_url === null
          ? undefined
          : hosts.log({
              runnerId: job.runner_id,
              dataUrl: job.data_url,
              path: `/builds/${params.id}/logs`,
              subject: params.id,
              shown,
              follow: query.follow ?? false,
              signal: abortSignal(),
            });
      // The end of the log is a good answer when the host does not have more.
      const log = ended
        ? job.connected === true
          ? await read().catch(() => undefined)
          : undefined
        : await read();
      const answer = log ?? job.log_tail;
      if (answer === null)
        throw notFound(
          job.status === 'queued' ? `${shown} is queued and has no log yet` : `${shown} has no log`,
        );
      logHeaders(reply);
      return answer;
    },
  );
}
