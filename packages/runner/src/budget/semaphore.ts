/** At most so many at a time, in order of arrival. */
export class Semaphore {
  #free: number;
  readonly #queue: (() => void)[] = [];

  constructor(most: number) {
    this.#free = most;
  }

  async run<T>(work: () => Promise<T>): Promise<T> {
    if (this.#free > 0) this.#free -= 1;
    else await new Promise<void>((resolve) => this.#queue.push(resolve));
    try {
      return await work();
    } finally {
      const next = this.#queue.shift();
      if (next) next();
      else this.#free += 1;
    }
  }
}
