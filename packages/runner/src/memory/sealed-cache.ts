import { stat } from 'node:fs/promises';
import { SealedMemory } from './sealed-memory.ts';

/** How long memory that nobody takes any more is held for the next. VMs that run hold it by themselves. */
const HELD_MS = 60_000;

interface Entry {
  memory: Promise<SealedMemory>;
  users: number;
  timer?: NodeJS.Timeout;
}

/** Sealed copies of memory files that several guests go on from: one a file, so that they share what they only read. */
export class SealedCache {
  readonly #entries = new Map<string, Entry>();

  /** @param path a file that is never written to again; under another name it is the same */
  async take(path: string): Promise<{ fd: number } & AsyncDisposable> {
    const { dev, ino } = await stat(path);
    const key = `${dev}:${ino}`;
    const entry = this.#entries.get(key) ?? { memory: SealedMemory.load(path), users: 0 };
    this.#entries.set(key, entry);
    entry.users += 1;
    clearTimeout(entry.timer);
    try {
      const { fd } = await entry.memory;
      return { fd, [Symbol.asyncDispose]: async () => this.#leave(key, entry) };
    } catch (error) {
      this.#entries.delete(key);
      throw error;
    }
  }

  #leave(key: string, entry: Entry): void {
    entry.users -= 1;
    if (entry.users > 0) return;
    entry.timer = setTimeout(() => {
      this.#entries.delete(key);
      void entry.memory.then((memory) => memory[Symbol.asyncDispose]());
    }, HELD_MS).unref();
  }
}
