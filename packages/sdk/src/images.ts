/** Images, and the logs of their builds. */
import type { ImageRecord, JobRecord } from '@releap/contract/wire';
import { ReleapError } from './error.ts';
import { followLog, type LogWriter } from './follow-log.ts';
import { pages } from './pages.ts';
import type { RawAnswer } from './raw-answer.ts';
import type { Service } from './service.ts';

/** Longest pause of a log that is not followed, in milliseconds. */
export const LOG_IDLE_MS = 60_000;

/** Newest first. */
export function listImages({ api }: Service): AsyncGenerator<ImageRecord> {
  return pages(api.listImages, 'images');
}

export function readBuildLog(service: Service, jobId: string, follow: boolean): Promise<RawAnswer> {
  return service.patient.getJobLog(
    { params: { id: jobId }, query: { follow: follow || undefined } },
    { idleMs: follow ? 0 : LOG_IDLE_MS },
  );
}

/** Reads the log until the build has ended. A build that writes none is waited for all the same. */
export async function followBuild(service: Service, jobId: string, write: LogWriter): Promise<JobRecord> {
  let job: JobRecord | undefined;
  const isEnded = async (): Promise<boolean> => {
    job = await service.api.getJob({ params: { id: jobId } });
    return job.status === 'done' || job.status === 'failed';
  };
  try {
    const read = (follow: boolean): Promise<RawAnswer> => readBuildLog(service, jobId, follow);
    await followLog(service.signal, { read, isEnded, write });
  } catch (error) {
    if (!(error instanceof ReleapError) || error.status !== 404) throw error;
  }
  if (job === undefined) throw new Error('the build was not read');
  return job;
}
