/** The worker thread that copies pages, so that large copies do not block the event loop. */
import { setPriority } from 'node:os';
import { parentPort, workerData } from 'node:worker_threads';
import { applyDelta, copyPages, estimateDelta, writeDelta } from './pages.ts';
import type { PageAnswer, PageRequest } from './page-copier.ts';

// Affects this thread only (setpriority(2), "C library/kernel differences").
if (workerData > 0) setPriority(0, workerData as number);

parentPort?.on('message', ({ id, job }: PageRequest) => {
  let answer: PageAnswer;
  try {
    answer = { id, bytes: work(job) };
  } catch (error) {
    const { message, code } = error as NodeJS.ErrnoException;
    answer = { id, error: message, code };
  }
  // oxlint-disable-next-line unicorn/require-post-message-target-origin -- that is of windows, not of threads
  parentPort?.postMessage(answer);
});

function work(job: PageRequest['job']): number | undefined {
  if (job.type === 'copy') return copyPages(job.memory, job.pages, job.target, job.range);
  if (job.type === 'write-delta') return writeDelta(job.memory, job.base, job.target, job.most);
  if (job.type === 'estimate-delta') return estimateDelta(job.memory, job.base);
  applyDelta(job.delta, job.memory);
  return undefined;
}
