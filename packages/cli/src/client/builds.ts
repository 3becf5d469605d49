/** Builds of images: waits for them, and follows their logs. */
import type { ImageRecord, JobRecord } from '@releap/contract';
import type { RawAnswer } from '@releap/sdk';
import { CliError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { type Context, printable } from '../terminal.ts';
import { followLog, writeTo } from './follow-log.ts';
import { pages } from './pages.ts';
import { pause } from './pause.ts';
import type { Service } from './service.ts';

const POLL_MS = 1_000;
/** Longest pause of a log that is not followed, in milliseconds. */
const IDLE_MS = 60_000;

/** Newest first. */
export function allImages({ api }: Service): AsyncGenerator<ImageRecord> {
  return pages(api.listImages, ({ images }) => images);
}

/** @throws CliError when the build has failed, or after the deadline */
export async function waitForBuild(
  service: Service,
  jobId: string,
  options: { deadlineMs: number; onStatus: (status: string) => void },
): Promise<void> {
  const until = performance.now() + options.deadlineMs;
  for (;;) {
    const job = await service.api.getJob({ params: { id: jobId } });
    options.onStatus(job.status);
    if (job.status === 'done') return;
    if (job.status === 'failed') throw buildFailure(job);
    if (performance.now() > until)
      throw new CliError(
        `the build is still ${job.status} after ${Math.round(options.deadlineMs / 1000)} s; it continues in the background`,
      );
    await pause(POLL_MS, service.signal);
  }
}

/** The reason, and the last lines of the log unless they were printed. */
export function buildFailure({ error }: JobRecord, options: { logPrinted?: boolean } = {}): CliError {
  const lines = (error ?? 'no reason was given').split('\n');
  const shown = options.logPrinted === true ? lines.slice(0, 1) : lines;
  return new CliError(`the build failed: ${shown.map(printable).join('\n')}`);
}

export function readBuildLog(service: Service, jobId: string, follow: boolean): Promise<RawAnswer> {
  return service.patient.getJobLog(
    { params: { id: jobId }, query: { follow: follow || undefined } },
    { idleMs: follow ? 0 : IDLE_MS },
  );
}

/** Prints the log on `stream` until the build has ended. A build that writes none is waited for all the same. */
export async function followBuild(
  service: Service,
  jobId: string,
  stream: Context['terminal']['stdout'],
): Promise<JobRecord> {
  let job: JobRecord | undefined;
  const isEnded = async (): Promise<boolean> => {
    job = await service.api.getJob({ params: { id: jobId } });
    return job.status === 'done' || job.status === 'failed';
  };
  try {
    await followLog(service.signal, {
      read: (follow) => readBuildLog(service, jobId, follow),
      isEnded,
      write: (chunk) => writeTo(stream, chunk),
    });
  } catch (error) {
    if (!(error instanceof CliError) || error.exitCode !== EXIT.notFound) throw error;
  }
  if (job === undefined) throw new Error('the build was not read');
  return job;
}
