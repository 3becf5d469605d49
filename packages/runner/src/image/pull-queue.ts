/**
 * Who fetches next. Pulls wait for networks, and a registry may be as slow as it likes: each project has a share, each
 * registry has a share, and a full queue refuses instead of growing.
 */
import { ImageError } from './image-error.ts';

export interface PullQueueLimits {
  /** Pulls at a time. */
  total: number;
  perProject: number;
  perHost: number;
  /** Pulls that wait. */
  waiting: number;
  waitingPerProject: number;
}

export interface PullOwner {
  /** A project's id, or what stands for the service itself. */
  project: string;
  /** The registry. */
  host: string;
}

interface Waiter extends PullOwner {
  start: () => void;
}

export class PullQueue {
  readonly #limits: PullQueueLimits;
  readonly #running: PullOwner[] = [];
  /** In order of arrival. */
  readonly #waiting = new Set<Waiter>();

  constructor(limits: PullQueueLimits) {
    this.#limits = limits;
  }

  get running(): number {
    return this.#running.length;
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  /** A place, given back when it is disposed of. @throws ImageError `busy` when too many wait; the signal's reason */
  async acquire(owner: PullOwner, signal?: AbortSignal): Promise<Disposable> {
    signal?.throwIfAborted();
    this.#refuseWhenFull(owner);
    const turn = Promise.withResolvers<void>();
    const waiter: Waiter = { ...owner, start: turn.resolve };
    const onAbort = (): void => {
      if (this.#waiting.delete(waiter)) turn.reject(signal?.reason as Error);
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    this.#waiting.add(waiter);
    this.#startNext();
    try {
      await turn.promise;
    } finally {
      signal?.removeEventListener('abort', onAbort);
    }
    return {
      [Symbol.dispose]: () => {
        const at = this.#running.indexOf(waiter);
        if (at < 0) return;
        this.#running.splice(at, 1);
        this.#startNext();
      },
    };
  }

  #refuseWhenFull({ project }: PullOwner): void {
    const { waiting, waitingPerProject } = this.#limits;
    const own = count(this.#waiting, (one) => one.project === project);
    if (own < waitingPerProject && this.#waiting.size < waiting) return;
    const whose = own >= waitingPerProject ? `${own} pulls of the project` : `${this.#waiting.size} pulls`;
    throw new ImageError(
      'busy',
      `${whose} wait already on this host, which is the most allowed; try again later`,
    );
  }

  /** Starts all that have a place. Of those that could, the one whose project has the fewest running goes first. */
  #startNext(): void {
    const { total, perProject, perHost } = this.#limits;
    while (this.#running.length < total) {
      let best: Waiter | undefined;
      let fewest = perProject;
      for (const waiter of this.#waiting) {
        if (count(this.#running, ({ host }) => host === waiter.host) >= perHost) continue;
        const own = count(this.#running, ({ project }) => project === waiter.project);
        if (own >= fewest) continue;
        best = waiter;
        fewest = own;
      }
      if (best === undefined) return;
      this.#waiting.delete(best);
      this.#running.push(best);
      best.start();
    }
  }
}

function count<T>(all: Iterable<T>, matches: (one: T) => boolean): number {
  let found = 0;
  for (const one of all) if (matches(one)) found += 1;
  return found;
}
