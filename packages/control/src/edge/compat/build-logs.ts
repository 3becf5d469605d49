/** Logs of builds, for clients that follow them from before the build has begun. */
import type { Readable } from 'node:stream';
import { jobNotFound } from '@releap/contract';
import { readJobLog } from '../../compute/jobs/logs.ts';

/**
 * The log of a build, as text. With `follow`, waits for a build that has not begun, and the log ends with the build.
 * @throws 404, 502
 */
export async function readBuildLog(
  context: Parameters<typeof readJobLog>[0],
  job: Parameters<typeof readJobLog>[1],
): Promise<Readable | string> {
  const found = await readJobLog(context, job);
  if (found === undefined) throw jobNotFound(job.id);
  // A build that was cancelled before it began has no log.
  return found.log ?? '';
}
