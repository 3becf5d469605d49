import { ImageError } from './image-error.ts';

interface Flight<T, P> {
  promise: Promise<T>;
  abort: AbortController;
  waiters: number;
  listeners: Set<(progress: P) => void>;
  last: P | undefined;
}

/**
 * Runs the work of one key once at a time; concurrent callers wait for the same work. A caller's own signal only ends its
 * waiting; the work is cancelled when no caller waits any more.
 */
export class SingleFlight<T, P = never> {
  readonly #flights = new Map<string, Flight<T, P>>();
  /** All that runs, also what was cancelled and still cleans up. */
  readonly #running = new Set<Promise<T>>();

  async run(
    key: string,
    work: (signal: AbortSignal, report: (progress: P) => void) => Promise<T>,
    options: { signal?: AbortSignal | undefined; onProgress?: ((progress: P) => void) | undefined } = {},
  ): Promise<T> {
    const { signal, onProgress } = options;
    if (signal?.aborted) throw new ImageError('aborted', 'waiting for the image was cancelled');
    const flight = this.#flights.get(key) ?? this.#start(key, work);
    flight.waiters += 1;
    if (onProgress) {
      flight.listeners.add(onProgress);
      if (flight.last !== undefined) onProgress(flight.last);
    }
    let onAbort: (() => void) | undefined;
    try {
      if (!signal) return await flight.promise;
      const aborted = new Promise<never>((_resolve, reject) => {
        onAbort = () => reject(new ImageError('aborted', 'waiting for the image was cancelled'));
        signal.addEventListener('abort', onAbort, { once: true });
      });
      return await Promise.race([flight.promise, aborted]);
    } finally {
      if (onAbort) signal?.removeEventListener('abort', onAbort);
      if (onProgress) flight.listeners.delete(onProgress);
      flight.waiters -= 1;
      if (flight.waiters === 0) {
        // No caller may join work that is being cancelled.
        if (this.#flights.get(key) === flight) this.#flights.delete(key);
        flight.abort.abort();
      }
    }
  }

  /** Cancels all work and waits until it has ended. */
  async close(): Promise<void> {
    for (const flight of this.#flights.values()) flight.abort.abort();
    await Promise.allSettled(this.#running);
  }

  #start(
    key: string,
    work: (signal: AbortSignal, report: (progress: P) => void) => Promise<T>,
  ): Flight<T, P> {
    const abort = new AbortController();
    const listeners = new Set<(progress: P) => void>();
    const report = (progress: P): void => {
      flight.last = progress;
      for (const listener of listeners) listener(progress);
    };
    // Started only once it is registered: work may report before it first waits.
    const promise = Promise.resolve()
      .then(async () => await work(abort.signal, report))
      .finally(() => {
        this.#running.delete(promise);
        if (this.#flights.get(key) === flight) this.#flights.delete(key);
      });
    const flight: Flight<T, P> = { abort, promise, waiters: 0, listeners, last: undefined };
    flight.promise.catch(() => undefined);
    this.#running.add(promise);
    this.#flights.set(key, flight);
    return flight;
  }
}
