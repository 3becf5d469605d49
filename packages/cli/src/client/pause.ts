import { setTimeout as sleep } from 'node:timers/promises';
import { interruptedError } from '../cli-error.ts';

/** Ends early, with the failure that says so, on a Ctrl-C. */
export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal }).catch(() => {
    throw interruptedError();
  });
}
