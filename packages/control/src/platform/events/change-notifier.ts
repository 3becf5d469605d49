/** Requests of this process that wait for a change of a sandbox or snapshot, by its id (UUIDs; no two are the same). */
export type WaitOutcome = 'changed' | 'timeout' | 'aborted';

/**
 * One request's watch on one id. Take it before reading the row: a change between the read and `next` is remembered, so
 * none is missed.
 */
export interface Watch extends Disposable {
  /** Resolves with the next change, or at once when there was one already. */
  next(timeoutMs: number, signal?: AbortSignal): Promise<WaitOutcome>;
}

export interface ChangeNotifier {
  watch(id: string): Watch;
  /** Wakes the watches on these ids. */
  changed(ids: Iterable<string>): void;
  /** Wakes all watches: what has changed in the meantime is not known. */
  changedAll(): void;
  /** Number of watches. */
  readonly waiting: number;
  /** Ends every wait, now and later, as if its time were over. */
  close(): void;
}

class Waiter implements Watch {
  changed = false;
  wake: ((outcome: WaitOutcome) => void) | undefined;
  readonly #leave: (waiter: Waiter) => void;
  readonly #isClosed: () => boolean;

  constructor(leave: (waiter: Waiter) => void, isClosed: () => boolean) {
    this.#leave = leave;
    this.#isClosed = isClosed;
  }

  async next(timeoutMs: number, signal?: AbortSignal): Promise<WaitOutcome> {
    if (this.changed) {
      this.changed = false;
      return 'changed';
    }
    if (signal?.aborted) return 'aborted';
    if (timeoutMs <= 0 || this.#isClosed()) return 'timeout';
    return new Promise((resolve) => {
      const settle = (outcome: WaitOutcome): void => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', onAbort);
        this.wake = undefined;
        this.changed = false;
        resolve(outcome);
      };
      const onAbort = (): void => settle('aborted');
      const timer = setTimeout(() => settle('timeout'), timeoutMs);
      signal?.addEventListener('abort', onAbort, { once: true });
      this.wake = settle;
    });
  }

  [Symbol.dispose](): void {
    this.#leave(this);
  }
}

export function createChangeNotifier(): ChangeNotifier {
  const byId = new Map<string, Set<Waiter>>();
  let count = 0;
  let closed = false;

  const wake = (waiters: Iterable<Waiter>, outcome: WaitOutcome): void => {
    for (const waiter of waiters) {
      waiter.changed = outcome === 'changed';
      waiter.wake?.(outcome);
    }
  };

  return {
    get waiting() {
      return count;
    },
    watch(id) {
      const group = byId.get(id) ?? new Set<Waiter>();
      byId.set(id, group);
      const waiter = new Waiter(
        (self) => {
          if (!group.delete(self)) return;
          count--;
          if (group.size === 0 && byId.get(id) === group) byId.delete(id);
        },
        () => closed,
      );
      group.add(waiter);
      count++;
      return waiter;
    },
    changed(ids) {
      if (count === 0) return;
      for (const id of ids) {
        const group = byId.get(id);
        if (group !== undefined) wake(group, 'changed');
      }
    },
    changedAll() {
      for (const group of byId.values()) wake(group, 'changed');
    },
    close() {
      closed = true;
      for (const group of byId.values()) wake(group, 'timeout');
    },
  };
}
