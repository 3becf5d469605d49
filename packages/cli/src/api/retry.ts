import { setTimeout as sleep } from 'node:timers/promises';
import { CliError, interruptedError } from '../cli-error.ts';

const ATTEMPTS = 20;
const LONGEST_PAUSE_SECS = 30;

/**
 * Calls again while the service says that it is full (429) or that a part of it is away (503), when it says so: such
 * a refusal has made nothing.
 */
export async function whenThereIsRoom<T>(
  call: () => Promise<T>,
  options: { signal: AbortSignal; onRefusal: (reason: string) => void },
): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await call();
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
