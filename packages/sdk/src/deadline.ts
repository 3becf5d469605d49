/** Deadlines of a call. */
import { ReleapError } from './error.ts';

/** Rejects when the promise takes longer; 0 waits as long as it takes. */
export async function idleTimeout<T>(promise: Promise<T>, ms: number): Promise<T> {
  if (ms === 0) return promise;
  const { promise: late, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(
    () => reject(new ReleapError('timeout', `the answer stopped for ${ms / 1000} s`)),
    ms,
  );
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Waits; rejects with the signal's reason when that is aborted first. */
export async function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  signal?.throwIfAborted();
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, ms);
  const stop = (): void => reject(signal?.reason as Error);
  signal?.addEventListener('abort', stop, { once: true });
  try {
    await promise;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', stop);
  }
}
