/** Logs of builds, for clients that follow them from before the build has begun. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Readable } from 'node:stream';
import { jobNotFound } from '@releap/contract';
import { hasEnded, readJobLog } from '../jobs/logs.ts';

/** Interval at which a build that has no log yet is looked at again, in milliseconds. */
const RETRY_MS = 250;

/**
 * The log of a build, as text. With `follow`, waits for a build that has not begun, and the log ends with the build.
 * @throws 404, 502
 */
export async function readBuildLog(
  context: Parameters<typeof readJobLog>[0],
  job: Parameters<typeof readJobLog>[1],
): Promise<Readable | string> {
  for (;;) {
    const found = await readJobLog(context, job);
    if (found === undefined) throw jobNotFound(job.id);
    if (found.log !== null) return found.log;
    // A build that was cancelled before it began has no log.
    if (!job.follow || hasEnded(found.status)) return '';
    // Ends when the client disconnects; builds have a deadline.
    await sleep(RETRY_MS, undefined, { signal: job.signal });
  }
}
