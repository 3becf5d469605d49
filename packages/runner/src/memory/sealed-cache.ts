import { stat } from 'node:fs/promises';
import type { MemoryBudget, MemoryOwner } from './memory-budget.ts';
import { SealedMemory } from './sealed-memory.ts';
import { SharedMemory } from './shared-memory.ts';
import type { MemoryShare } from './shared-memory.ts';

/** How long memory is cached after its last use. Running VMs hold a reference of their own. */
const HELD_MS = 60_000;

interface Entry {
  memory: SharedMemory;
  ready: Promise<void>;
  timer: NodeJS.Timeout;
}

/** A VMM may be started with this memory at once, and may read it once `ready` has resolved. */
export type LoadingMemory = MemoryShare & { ready: Promise<void> };

/** Sealed copies of memory files that several guests are restored from: one for each file, so that guests share unwritten pages. */
export class SealedCache {
  readonly #budget: MemoryBudget;
  readonly #entries = new Map<string, Promise<Entry>>();

  constructor(budget: MemoryBudget) {
    this.#budget = budget;
  }

  /**
   * @param path an immutable file; hard links to it share one copy
   * @param project of the sandbox that continues from it
   */
  async take(path: string, project: string | undefined): Promise<LoadingMemory> {
    const { dev, ino, blocks } = await stat(path);
    const key = `${dev}:${ino}`;
    const known = this.#entries.get(key);
    const loading = known ?? this.#load({ origin: key, project }, path, blocks * 512);
    if (known === undefined) this.#entries.set(key, loading);
    const { memory, ready, timer } = await loading.catch((error: unknown) => {
      this.#entries.delete(key);
      throw error;
    });
    timer.refresh();
    return { ...memory.share(), ready };
  }

  async #load(owner: MemoryOwner, path: string, bytes: number): Promise<Entry> {
    const grant = await this.#budget.admit('the memory that this sandbox continues from', owner, bytes);
    const { memory, ready } = await SealedMemory.beginLoading(path).catch((error: unknown) => {
      grant[Symbol.dispose]();
      throw error;
    });
    const shared = new SharedMemory(memory);
    const held = shared.share();
    const forget = (): void => {
      clearTimeout(timer);
      this.#entries.delete(owner.origin);
      grant[Symbol.dispose]();
      void held[Symbol.asyncDispose]();
    };
    const timer = setTimeout(forget, HELD_MS).unref();
    ready.then(() => {
      grant.used();
      grant.isSpare(forget);
    }, forget);
    return { memory: shared, ready, timer };
  }
}
