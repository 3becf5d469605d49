import { availableParallelism } from 'node:os';
import { Semaphore } from '../budget/semaphore.ts';

/** How long a guest that runs may keep other starts waiting: it may be slow on purpose. */
const TURN_MS = 5_000;

/**
 * How many starts of VMs run at a time: as many as there are cores, the others in order of arrival. A start is processor
 * time from its first step to its last, so that many at once would all end when the last one does.
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

  /** How many starts wait. */
  get waiting(): number {
    return this.#starts.waiting;
  }

  /**
   * Runs a start when it is its turn. One whose guest takes long continues, and the next one starts beside it.
   * @param start gets the milliseconds that it has waited, and what to call when its guest begins to run
   * @param signal aborted while it waits: it leaves the queue
   * @throws the signal's reason in that case
   */
  async run<T>(
    start: (waitedMs: number, guestRuns: () => void) => Promise<T>,
    signal?: AbortSignal,
  ): Promise<T> {
    const askedAt = performance.now();
    const permit = await this.#starts.enter(signal);
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

  /** Resolves when a core is left beside the starts under way: for what is made ahead of time. */
  async spare(signal?: AbortSignal): Promise<void> {
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
