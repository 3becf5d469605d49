import { open, stat } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { HostdProcess } from '../host/hostd.ts';
import { DEADLINES_MS } from '../vmm/tuning.ts';

/** Memory that is still being filled. Its owner disposes of `memory` in any case. */
export interface UnsealedMemory {
  memory: SealedMemory;
  /**
   * Makes the memory immutable. To be called once.
   * @param source a sparse file; its data is copied to where nothing was written yet
   */
  seal: (source: string) => Promise<void>;
  /** Instead of `seal`, when the memory is not needed. */
  abandon: () => Promise<void>;
}

/**
 * Memory that many guests are restored from, in a memfd that is sealed against writing.
 *
 * A VMM inherits a writable descriptor of its memory. With a plain file, a guest that has taken over its VMM could write into the
 * kernel of every other sandbox restored from the same memory. The seal makes that impossible through any descriptor.
 * The kernel frees the memory with its last user.
 */
export class SealedMemory implements AsyncDisposable {
  readonly #file: FileHandle;

  private constructor(file: FileHandle) {
    this.#file = file;
  }

  /** Copies the sparse file `path`, at about 2 GB/s. */
  static async load(path: string): Promise<SealedMemory> {
    await using opened = new AsyncDisposableStack();
    try {
      const { size } = await stat(path);
      const { memory, seal } = await SealedMemory.begin(size);
      opened.use(memory);
      await seal(path);
      opened.move();
      return memory;
    } catch (error) {
      throw new Error(`memory ${path} cannot be loaded: ${(error as Error).message}`, { cause: error });
    }
  }

  /** Allocates memory of `bytes`. A VMM may be started with it before it is sealed, but must not read it. */
  static async begin(bytes: number): Promise<UnsealedMemory> {
    const helper = new HostdProcess('memfd', [String(bytes)]);
    let file: FileHandle;
    try {
      const descriptor = Number(await helper.line(DEADLINES_MS.copyMemory));
      file = await open(`/proc/${helper.pid}/fd/${descriptor}`, 'r+');
    } catch (error) {
      await helper[Symbol.asyncDispose]();
      throw error;
    }
    const ask = async (order: string): Promise<void> => {
      helper.send(order);
      await helper.line(DEADLINES_MS.copyMemory);
    };
    const abandon = async (): Promise<void> => await helper[Symbol.asyncDispose]();
    const seal: UnsealedMemory['seal'] = async (source) => {
      try {
        await ask(`fill ${source}`);
        await ask('seal');
      } finally {
        await abandon();
      }
    };
    return {
      memory: new SealedMemory(file),
      seal,
      abandon,
    };
  }

  /** Descriptor to hand to a VMM, valid until disposed. */
  get fd(): number {
    return this.#file.fd;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
  }
}
