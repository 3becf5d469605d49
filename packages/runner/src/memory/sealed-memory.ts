import { open, stat } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { HostdProcess } from '../host/hostd.ts';

const DEADLINE_MS = 120_000;

/** Memory that is still being filled. Whoever has it closes `memory`, whatever came of it. */
export interface UnsealedMemory {
  memory: SealedMemory;
  /**
   * To be called once: nobody can write to it afterwards.
   * @param source a file, sparse or compact; what it holds is put where `write` has written nothing
   * @param write what else is to be in it
   */
  seal: (source: string, write?: (memory: FileHandle) => Promise<void>) => Promise<void>;
  /** Puts what a file holds where nothing was written yet, ahead of `seal`, which is the sooner done with the same file. */
  fill: (source: string) => Promise<void>;
  /** Makes it empty again. */
  clear: () => Promise<void>;
  /** Instead of `seal`: nobody wants it. */
  abandon: () => Promise<void>;
}

/**
 * Memory that many guests are made from, in a memfd that is sealed against writing.
 *
 * A VMM has a descriptor that its memory can be written through: this one is open for that, and a QEMU before 8.2, which may
 * run what was saved with it, opens it for writing too. With a plain file, a guest that broke out into its VMM could write
 * into the kernel of every other sandbox made from the same memory. The seal makes that impossible for every descriptor.
 * The memory goes when its last user does.
 */
export class SealedMemory implements AsyncDisposable {
  readonly #file: FileHandle;

  private constructor(file: FileHandle) {
    this.#file = file;
  }

  /** Copies `path`, which is sparse or compact; takes about half a millisecond a megabyte. */
  static async load(path: string): Promise<SealedMemory> {
    const { memory, ready } = await SealedMemory.beginLoading(path);
    try {
      await ready;
      return memory;
    } catch (error) {
      await memory[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Like `load`, without waiting for the end: a VMM may be started with it, but not look into it before `ready`. */
  static async beginLoading(path: string): Promise<{ memory: SealedMemory; ready: Promise<void> }> {
    const explained = (cause: unknown): Error =>
      new Error(`memory ${path} cannot be loaded: ${(cause as Error).message}`, { cause });
    try {
      const { size } = await stat(path);
      const { memory, seal } = await SealedMemory.begin(size);
      const ready = seal(path).catch((error: unknown) => {
        throw explained(error);
      });
      return { memory, ready };
    } catch (error) {
      throw explained(error);
    }
  }

  /** New memory of `bytes`. A VMM may be started with it before it is sealed, but must not look into it. */
  static async begin(bytes: number): Promise<UnsealedMemory> {
    const helper = new HostdProcess('memfd', [String(bytes)]);
    let file: FileHandle;
    try {
      const descriptor = Number(await helper.line(DEADLINE_MS));
      file = await open(`/proc/${helper.pid}/fd/${descriptor}`, 'r+');
    } catch (error) {
      await helper[Symbol.asyncDispose]();
      throw error;
    }
    const ask = async (order: string): Promise<void> => {
      helper.send(order);
      await helper.line(DEADLINE_MS);
    };
    const abandon = async (): Promise<void> => await helper[Symbol.asyncDispose]();
    const seal: UnsealedMemory['seal'] = async (source, write) => {
      try {
        await write?.(file);
        await ask(`fill ${source}`);
        await ask('seal');
      } finally {
        await abandon();
      }
    };
    return {
      memory: new SealedMemory(file),
      seal,
      fill: (source) => ask(`fill ${source}`),
      clear: async () => {
        await file.truncate(0);
        await file.truncate(bytes);
      },
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
