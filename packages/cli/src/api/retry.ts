import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { IDEMPOTENCY_HEADER } from '@releap/contract';
import { CliError, interruptedError } from '../cli-error.ts';

const ATTEMPTS = 20;
const LONGEST_PAUSE_SECS = 30;

/** Headers that are the same for all tries of one request. */
export type Repeatable = Record<typeof IDEMPOTENCY_HEADER, string>;

/**
 * Calls again while the service says that it is full (429) or that a part of it is away (503), when it says so. A
 * service whose database went away in the middle cannot know what it has written: it finds that by the headers.
 */
export async function whenThereIsRoom<T>(
  call: (headers: Repeatable) => Promise<T>,
  options: { signal: AbortSignal; onRefusal: (reason: string) => void },
): Promise<T> {
  const headers: Repeatable = { [IDEMPOTENCY_HEADER]: randomUUID() };
  for (let attempt = 1; ; attempt++) {
    try {
      return await call(headers);
    } catch (error) {
      const again = error instanceof CliError && (error.status === 429 || error.status === 503);
      if (!again || attempt >= ATTEMPTS) throw error;
      options.onRefusal(error.message);
      await pause(Math.min(error.retryAfterSecs ?? 2, LONGEST_PAUSE_SECS) * 1000, options.signal);
    }
  }
}

/** Ends early, with the failure that says so, on a Ctrl-C. */
export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal }).catch(() => {
    throw interruptedError();
  });
}
