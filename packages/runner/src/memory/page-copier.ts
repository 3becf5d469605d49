import { Worker } from 'node:worker_threads';
import type { GuestMemory } from './guest-memory.ts';
import type { Pages, Range } from './pages.ts';

/** Files are descriptors of this process. */
type Job =
  | { type: 'copy'; memory: GuestMemory; pages: Pages; target: number; range?: Range }
  | { type: 'write-delta'; memory: GuestMemory; base: number; target: number; most: number }
  | { type: 'estimate-delta'; memory: GuestMemory; base: number }
  | { type: 'apply-delta'; memory: GuestMemory; delta: number };

export interface PageRequest {
  id: number;
  job: Job;
}

export interface PageAnswer {
  id: number;
  bytes?: number | undefined;
  error?: string;
  code?: string | undefined;
}

/** A worker thread that copies guests' pages, one job at a time. It is started with the first job. */
export class PageCopier {
  readonly #niceness: number;
  #worker: Worker | undefined;
  #last = 0;
  readonly #waiting = new Map<number, (answer: PageAnswer) => void>();

  /** @param niceness above 0 for a lower scheduling priority */
  constructor(niceness = 0) {
    this.#niceness = niceness;
  }

  /** Starts the thread, so that the first job does not wait for its start. */
  warm(): void {
    this.#worker ??= this.#start();
  }

  /** Like `copyPages` of pages.ts. */
  async copy(memory: GuestMemory, pages: Pages, target: number, range?: Range): Promise<number> {
    return (await this.#do({ type: 'copy', memory, pages, target, ...(range && { range }) })) ?? 0;
  }

  /** Like `writeDelta` of pages.ts. */
  async writeDelta(
    memory: GuestMemory,
    base: number,
    target: number,
    most: number,
  ): Promise<number | undefined> {
    return await this.#do({ type: 'write-delta', memory, base, target, most });
  }

  /** Like `estimateDelta` of pages.ts. */
  async estimateDelta(memory: GuestMemory, base: number): Promise<number> {
    return (await this.#do({ type: 'estimate-delta', memory, base })) ?? 0;
  }

  /** Like `applyDelta` of pages.ts. */
  async applyDelta(delta: number, memory: GuestMemory): Promise<void> {
    await this.#do({ type: 'apply-delta', memory, delta });
  }

  async #do(job: Job): Promise<number | undefined> {
    this.warm();
    const id = ++this.#last;
    const { promise, resolve } = Promise.withResolvers<PageAnswer>();
    this.#waiting.set(id, resolve);
    this.#worker?.ref();
    this.#worker?.postMessage({ id, job } satisfies PageRequest);
    const { bytes, error, code } = await promise;
    if (error === undefined) return bytes;
    throw Object.assign(new Error(`pages of the guest could not be copied: ${error}`), { code });
  }

  #start(): Worker {
    const worker = new Worker(new URL('./page-worker.ts', import.meta.url), { workerData: this.#niceness });
    worker.unref();
    worker.on('message', (answer: PageAnswer) => {
      this.#waiting.get(answer.id)?.(answer);
      this.#waiting.delete(answer.id);
      if (this.#waiting.size === 0) worker.unref();
    });
    worker.on('error', (error) => {
      this.#worker = undefined;
      for (const [id, resolve] of this.#waiting) resolve({ id, error: error.message });
      this.#waiting.clear();
    });
    return worker;
  }
}

/** Of copies that must not slow down running guests. On a busy machine they take several times as long. */
export const BACKGROUND_NICENESS = 10;

/** Ranges that two copiers take alternately: written pages are clustered. */
const PART_BYTES = 32 * 1024 * 1024;

/**
 * One thread a phase, so that a copy for which a guest is paused never waits for one whose guest runs: `background` copies
 * for snapshots, `precopy` before a guest is paused and for the children of forks, and `stopAndCopy` while a guest is paused.
 */
export class PageCopiers {
  readonly background = new PageCopier(BACKGROUND_NICENESS);
  readonly precopy = new PageCopier();
  readonly stopAndCopy = new PageCopier();
  readonly #second = new PageCopier();

  /** Like `precopy.copy`, with two threads. */
  async copyParallel(memory: GuestMemory, pages: Pages, target: number): Promise<void> {
    const parts = Math.ceil(memory.bytes / PART_BYTES);
    const all = Array.from({ length: parts }, (_, part) => {
      const from = part * PART_BYTES;
      const range = { from, length: Math.min(PART_BYTES, memory.bytes - from) };
      const copier = part % 2 === 0 ? this.precopy : this.#second;
      return copier.copy(memory, pages, target, range);
    });
    // Also after an error: the caller may then close the descriptor.
    await Promise.allSettled(all);
    await Promise.all(all);
  }
}
