import { setTimeout as sleep } from 'node:timers/promises';
import { StoreError } from '../artifact/store-client.ts';

const PAUSE_MS = 2_000;
const TOO_MANY_REQUESTS = 429;

/**
 * Repeats what control or its store refuses because they are out of order.
 * @throws with the last reason when that lasts longer than `forMs`; any other error at once
 */
export async function retryWhileUnavailable<T>(
  work: () => Promise<T>,
  { what, forMs, signal }: { what: string; forMs: number; signal: AbortSignal },
): Promise<T> {
  const until = performance.now() + forMs;
  for (;;) {
    try {
      return await work();
    } catch (error) {
      signal.throwIfAborted();
      if (!mayPass(error)) throw error;
      if (performance.now() > until)
        throw new Error(`${what} cannot be read: ${(error as Error).message}`, { cause: error });
    }
    await sleep(PAUSE_MS, undefined, { signal });
  }
}

/** `fetch` throws a TypeError when the server cannot be reached. */
function mayPass(error: unknown): boolean {
  if (error instanceof StoreError) return error.status >= 500 || error.status === TOO_MANY_REQUESTS;
  return error instanceof TypeError;
}
