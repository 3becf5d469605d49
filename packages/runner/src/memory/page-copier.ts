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

/** A thread that copies guests' pages, one job after the other. It is started with the first one. */
export class PageCopier {
  readonly #niceness: number;
  #worker: Worker | undefined;
  #last = 0;
  readonly #waiting = new Map<number, (answer: PageAnswer) => void>();

  /** @param niceness above 0 to let others have the processors first */
  constructor(niceness = 0) {
    this.#niceness = niceness;
  }

  /** Starts the thread, so that the first job does not wait for that. */
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

/** Of what is copied while guests go on that are not to notice. On a busy machine it takes some times as long. */
export const CALM_NICENESS = 10;

/** Parts that copiers take in turns: written pages lie close together. */
const PART_BYTES = 32 * 1024 * 1024;

/**
 * Threads, so that what a guest stands still for never waits for what it does not: `calm` copies for snapshots, whose
 * sources go on, `ahead` before a pause, whose guest is about to stop anyway, and for forks, whose children are waited
 * for, and `urgent` while one stands.
 */
export class PageCopiers {
  readonly calm = new PageCopier(CALM_NICENESS);
  readonly ahead = new PageCopier();
  readonly urgent = new PageCopier();
  readonly #beside = new PageCopier();

  /** Like `ahead.copy`, by two threads at a time. */
  async copyTogether(memory: GuestMemory, pages: Pages, target: number): Promise<void> {
    const parts = Math.ceil(memory.bytes / PART_BYTES);
    const all = Array.from({ length: parts }, (_, part) => {
      const from = part * PART_BYTES;
      const range = { from, length: Math.min(PART_BYTES, memory.bytes - from) };
      const copier = part % 2 === 0 ? this.ahead : this.#beside;
      return copier.copy(memory, pages, target, range);
    });
    // When one fails the others have ended, too: the descriptor may be closed then.
    await Promise.allSettled(all);
    await Promise.all(all);
  }
}
