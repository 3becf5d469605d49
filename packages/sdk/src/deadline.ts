/** Deadlines and pauses. */
import { aborted, ReleapError } from './error.ts';

/** Rejects when the promise takes longer; 0 waits as long as it takes. */
export async function idleTimeout<T>(promise: Promise<T>, ms: number, { origin }: URL): Promise<T> {
  if (ms === 0) return promise;
  const { promise: late, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(
    () => reject(new ReleapError('timeout', `cannot reach ${origin}: the answer stopped for ${ms / 1000} s`)),
    ms,
  );
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Waits. @throws ReleapError when the signal is aborted first */
export async function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  if (signal?.aborted) throw aborted(signal);
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, ms);
  const stop = (): void => reject(aborted(signal));
  signal?.addEventListener('abort', stop, { once: true });
  try {
    await promise;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', stop);
  }
}
