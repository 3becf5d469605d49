import type { SealedMemory } from './sealed-memory.ts';

/** A reference to shared memory. The descriptor is valid until the reference is disposed of. */
export interface MemoryShare {
  fd: number;
  [Symbol.asyncDispose]: () => Promise<void>;
}

/** Reference-counted sealed memory, released with its last reference. */
export class SharedMemory {
  readonly #memory: SealedMemory;
  #shares = 0;

  constructor(memory: SealedMemory) {
    this.#memory = memory;
  }

  /** Must not be called after the last reference was disposed of. */
  share(): MemoryShare {
    this.#shares += 1;
    let isHeld = true;
    return {
      fd: this.#memory.fd,
      [Symbol.asyncDispose]: async () => {
        if (!isHeld) return;
        isHeld = false;
        this.#shares -= 1;
        if (this.#shares === 0) await this.#memory[Symbol.asyncDispose]();
      },
    };
  }
}
