import { availableParallelism } from 'node:os';
import { Semaphore } from '../budget/semaphore.ts';

/** How long a running guest may delay other starts: it may be slow on purpose. */
const TURN_MS = 5_000;

/**
 * Limits concurrent starts of VMs to the number of cores, in order of arrival. A start is CPU-bound from its first step to
 * its last, so many concurrent ones would all finish as late as the last.
 */
export class Admission {
  readonly #starts: Semaphore;
  readonly #turnMs: number;
  /** Called when a start could begin at once. */
  readonly #background = new Set<() => void>();

  constructor(options: { most?: number; turnMs?: number } = {}) {
    this.#starts = new Semaphore(options.most ?? availableParallelism());
    this.#turnMs = options.turnMs ?? TURN_MS;
  }

  /** Number of starts that wait. */
  get waiting(): number {
    return this.#starts.waiting;
  }

  /**
   * Runs a start when a slot is free. A start whose guest takes long continues, but frees its slot.
   * @param start gets the milliseconds that it has waited, and a callback for the moment in which its guest begins to run
   * @param signal if aborted while the start waits, the start leaves the queue
   * @throws the signal's reason in that case
   */
  async run<T>(
    start: (waitedMs: number, guestRuns: () => void) => Promise<T>,
    signal?: AbortSignal,
  ): Promise<T> {
    const askedAt = performance.now();
    const permit = await this.#starts.acquire(signal);
    const leave = (): void => {
      permit[Symbol.dispose]();
      this.#wakeBackground();
    };
    let timer: NodeJS.Timeout | undefined;
    const guestRuns = (): void => {
      timer ??= setTimeout(leave, this.#turnMs).unref();
    };
    try {
      return await start(Math.round(performance.now() - askedAt), guestRuns);
    } finally {
      clearTimeout(timer);
      leave();
    }
  }

  /** Resolves when fewer starts run than there are cores: for work that is done ahead of time. */
  async idleCapacity(signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    if (this.#starts.hasFree) return;
    const free = Promise.withResolvers<void>();
    const onAbort = (): void => free.reject(signal?.reason as Error);
    this.#background.add(free.resolve);
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      await free.promise;
    } finally {
      this.#background.delete(free.resolve);
      signal?.removeEventListener('abort', onAbort);
    }
  }

  #wakeBackground(): void {
    if (!this.#starts.hasFree) return;
    for (const wake of this.#background) wake();
  }
}
