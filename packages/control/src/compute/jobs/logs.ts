/**
 * `GET /jobs/:id/logs`: the log of a build, streamed from its host. The host keeps it for a while; its end is stored with
 * the job and stays as long as that.
 */
import type { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { isUuid, jobNotFound, notFound, operations, quote, type JobStatus } from '@releap/contract';
import { queryOne, statement, type Database } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { logHeaders, type HostClient } from '../../fleet/runners/host-client.ts';

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

export interface JobLog {
  kind: string;
  status: JobStatus;
  /** Null when there is none, or not yet. */
  log: Readable | string | null;
}

interface LogContext {
  database: Database;
  hosts: HostClient;
}

interface LogRequest {
  id: string;
  projectId: string;
  follow: boolean;
  signal: AbortSignal;
}

/** Interval at which a build that has no log yet is looked at again, in milliseconds. */
const RETRY_MS = 250;

/**
 * The log of a job. With `follow` it waits for a build that has not begun, until the client disconnects; builds have a deadline.
 * @returns undefined for a job that the project does not have
 * @throws 502 when the host of a running build does not answer
 */
export async function readJobLog(context: LogContext, request: LogRequest): Promise<JobLog | undefined> {
  for (;;) {
    const job = await readLogNow(context, request);
    const canCome = job?.kind === 'build' && job.log === null && !hasEnded(job.status);
    if (!request.follow || !canCome) return job;
    await sleep(RETRY_MS, undefined, { signal: request.signal });
  }
}

async function readLogNow(
  { database, hosts }: LogContext,
  { id, projectId, follow, signal }: LogRequest,
): Promise<JobLog | undefined> {
  const job = isUuid(id) ? await queryOne(database.pool, WHERE, [id, projectId]) : undefined;
  if (job === undefined) return undefined;
  const { kind, status, runner_id: runnerId, data_url: dataUrl } = job;
  const read = async (): Promise<Readable | undefined> =>
    kind !== 'build' || runnerId === null || dataUrl === null
      ? undefined
      : hosts.log({
          runnerId,
          dataUrl,
          path: `/builds/${id}/logs`,
          subject: id,
          shown: `job ${quote(id)}`,
          follow,
          signal,
        });
  // The end of the log is a good answer when the host does not have more.
  const log = hasEnded(status)
    ? job.connected === true
      ? await read().catch(() => undefined)
      : undefined
    : await read();
  return { kind, status, log: log ?? job.log_tail };
}

const hasEnded = (status: JobStatus): boolean => status === 'done' || status === 'failed';

export function jobLogRoutes({ workload }: Planes, context: LogContext): void {
  workload.operation(
    operations.getJobLog,
    async ({ params: { id }, query, principal, reply, abortSignal }): Promise<Readable | string> => {
      const { projectId } = principal;
      const follow = query.follow ?? false;
      const job = await readJobLog(context, { id, projectId, follow, signal: abortSignal() });
      if (job === undefined) throw jobNotFound(id);
      const shown = `job ${quote(id)}`;
      if (job.kind !== 'build')
        throw notFound(`${shown} is of kind ${job.kind} and has no log`, 'log_not_found');
      if (job.log === null)
        throw notFound(
          job.status === 'queued' ? `${shown} is queued and has no log yet` : `${shown} has no log`,
          'log_not_found',
        );
      logHeaders(reply);
      return job.log;
    },
  );
}
