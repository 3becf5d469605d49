import { Semaphore } from './semaphore.ts';

/** One at a time of each key, in order of arrival. */
export class KeyedSemaphore {
  /** Of the keys in use. */
  readonly #semaphores = new Map<string, Semaphore>();

  /** Whether the key is in use: the next one would have to wait. */
  has(key: string): boolean {
    return this.#semaphores.has(key);
  }

  /** Like `run` of a semaphore of the key. */
  async run<T>(key: string, work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    using _permit = await this.acquire(key, signal);
    return await work();
  }

  /** Like `acquire` of a semaphore of the key, which is in use from this call on. */
  async acquire(key: string, signal?: AbortSignal): Promise<Disposable> {
    const semaphore = this.#semaphores.get(key) ?? new Semaphore(1);
    this.#semaphores.set(key, semaphore);
    const forgetUnused = (): void => {
      if (semaphore.hasFree && this.#semaphores.get(key) === semaphore) this.#semaphores.delete(key);
    };
    try {
      const permit = await semaphore.acquire(signal);
      return {
        [Symbol.dispose]: () => {
          permit[Symbol.dispose]();
          forgetUnused();
        },
      };
    } catch (error) {
      forgetUnused();
      throw error;
    }
  }
}
