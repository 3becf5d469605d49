/** At most so many at a time, in order of arrival. */
export class Semaphore {
  #free: number;
  /** Waiters, first come first. */
  readonly #queue = new Set<() => void>();

  constructor(most: number) {
    this.#free = most;
  }

  /** How many wait. */
  get waiting(): number {
    return this.#queue.size;
  }

  /** Whether one more would not have to wait. */
  get hasFree(): boolean {
    return this.#free > 0;
  }

  /**
   * @param signal aborted while it waits: it leaves the queue, and `work` is not begun
   * @throws the signal's reason in that case
   */
  async run<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    using _permit = await this.acquire(signal);
    return await work();
  }

  /** A permit, given back when it is disposed of; disposing of it again does nothing. Like `run` otherwise. */
  async acquire(signal?: AbortSignal): Promise<Disposable> {
    signal?.throwIfAborted();
    if (this.#free > 0) this.#free -= 1;
    else await this.#wait(signal);
    let isHeld = true;
    return {
      [Symbol.dispose]: () => {
        if (isHeld) this.#leave();
        isHeld = false;
      },
    };
  }

  async #wait(signal: AbortSignal | undefined): Promise<void> {
    const turn = Promise.withResolvers<void>();
    const onAbort = (): void => {
      this.#queue.delete(turn.resolve);
      turn.reject(signal?.reason as Error);
    };
    this.#queue.add(turn.resolve);
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      await turn.promise;
    } finally {
      signal?.removeEventListener('abort', onAbort);
    }
  }

  #leave(): void {
    const [next] = this.#queue;
    if (next === undefined) {
      this.#free += 1;
      return;
    }
    this.#queue.delete(next);
    next();
  }
}
