import { open, stat } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { PerlHelper } from './perl-helper.ts';

export const MEMORY_SCRIPT = fileURLToPath(new URL('./memory.pl', import.meta.url));
const DEADLINE_MS = 120_000;

/** Memory that is still being filled. */
export interface UnsealedMemory {
  memory: SealedMemory;
  /**
   * To be called once, with what else is to be written when the source is in: nobody can write to it afterwards. If it
   * rejects the memory is gone.
   */
  seal: (fill?: (memory: FileHandle) => Promise<void>) => Promise<void>;
  /** Instead of `seal`: nobody wants it. */
  abandon: () => Promise<void>;
}

/**
 * Memory that many guests are made from, in a memfd that is sealed against writing.
 *
 * A VMM opens its memory for writing even where it maps it privately (before QEMU 8.2 it cannot be told otherwise) and
 * keeps that descriptor. With a plain file, a guest that broke out into its VMM could write through it into the
 * kernel of every other sandbox made from the same memory. The seal makes that impossible for whoever has the
 * descriptor. The memory goes when its last user does.
 */
export class SealedMemory implements AsyncDisposable {
  readonly #file: FileHandle;

  private constructor(file: FileHandle) {
    this.#file = file;
  }

  /** Copies `path`, which is sparse or compact; takes about a third of a millisecond a megabyte. */
  static async load(path: string): Promise<SealedMemory> {
    try {
      const { size } = await stat(path);
      const { memory, seal } = await SealedMemory.begin(size, path);
      await seal();
      return memory;
    } catch (error) {
      throw new Error(`memory ${path} cannot be loaded: ${(error as Error).message}`, { cause: error });
    }
  }

  /**
   * New memory of `bytes`, which is being filled with what `source` holds. A VMM may be started with it meanwhile, but
   * must not look into it yet.
   */
  static async begin(bytes: number, source: string): Promise<UnsealedMemory> {
    const helper = new PerlHelper(MEMORY_SCRIPT, ['hold', String(bytes), source]);
    let file: FileHandle;
    try {
      const descriptor = Number(await helper.line(DEADLINE_MS));
      file = await open(`/proc/${helper.pid}/fd/${descriptor}`, 'r+');
    } catch (error) {
      await helper[Symbol.asyncDispose]();
      throw error;
    }
    const seal = async (fill?: (memory: FileHandle) => Promise<void>): Promise<void> => {
      try {
        await helper.line(DEADLINE_MS);
        await fill?.(file);
        helper.send('seal');
        await helper.line(DEADLINE_MS);
      } catch (error) {
        await file.close();
        throw error;
      } finally {
        await helper[Symbol.asyncDispose]();
      }
    };
    const abandon = async (): Promise<void> => {
      await file.close();
      await helper[Symbol.asyncDispose]();
    };
    return { memory: new SealedMemory(file), seal, abandon };
  }

  /** Descriptor to hand to a VMM, valid until disposed. */
  get fd(): number {
    return this.#file.fd;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
  }
}
