import { stat } from 'node:fs/promises';
import { SealedMemory } from './sealed-memory.ts';
import { SharedMemory } from './shared-memory.ts';
import type { MemoryShare } from './shared-memory.ts';

/** How long memory is held for a next one that goes on from it. VMs that run hold it by themselves. */
const HELD_MS = 60_000;

interface Entry {
  memory: SharedMemory;
  ready: Promise<void>;
  timer: NodeJS.Timeout;
}

/** Memory that a VMM may be started with at once, and that it may look into as soon as it is ready. */
export type LoadingMemory = MemoryShare & { ready: Promise<void> };

/** Sealed copies of memory files that several guests go on from: one a file, so that they share what they only read. */
export class SealedCache {
  readonly #entries = new Map<string, Promise<Entry>>();

  /** @param path a file that is never written to again; under another name it is the same */
  async take(path: string): Promise<LoadingMemory> {
    const { dev, ino } = await stat(path);
    const key = `${dev}:${ino}`;
    const known = this.#entries.get(key);
    const loading = known ?? this.#load(key, path);
    if (known === undefined) this.#entries.set(key, loading);
    const { memory, ready, timer } = await loading.catch((error: unknown) => {
      this.#entries.delete(key);
      throw error;
    });
    timer.refresh();
    return { ...memory.share(), ready };
  }

  async #load(key: string, path: string): Promise<Entry> {
    const { memory, ready } = await SealedMemory.beginLoading(path);
    const shared = new SharedMemory(memory);
    const held = shared.share();
    const forget = (): void => {
      this.#entries.delete(key);
      void held[Symbol.asyncDispose]();
    };
    const timer = setTimeout(forget, HELD_MS).unref();
    ready.catch(() => {
      clearTimeout(timer);
      forget();
    });
    return { memory: shared, ready, timer };
  }
}
