import type { SealedMemory } from './sealed-memory.ts';

/** One's part in memory that others have as well. The descriptor is good until it is disposed of. */
export interface MemoryShare {
  fd: number;
  [Symbol.asyncDispose]: () => Promise<void>;
}

/** Sealed memory that several have at a time. It goes with the last of them. */
export class SharedMemory {
  readonly #memory: SealedMemory;
  #shares = 0;

  constructor(memory: SealedMemory) {
    this.#memory = memory;
  }

  /** Not once the last share is gone. */
  share(): MemoryShare {
    this.#shares += 1;
    let mine = true;
    return {
      fd: this.#memory.fd,
      [Symbol.asyncDispose]: async () => {
        if (!mine) return;
        mine = false;
        this.#shares -= 1;
        if (this.#shares === 0) await this.#memory[Symbol.asyncDispose]();
      },
    };
  }
}
