import { open, stat } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { PerlHelper } from './perl-helper.ts';

export const MEMORY_SCRIPT = fileURLToPath(new URL('./memory.pl', import.meta.url));
const DEADLINE_MS = 120_000;

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
      return await SealedMemory.make(size, async () => undefined, path);
    } catch (error) {
      throw new Error(`memory ${path} cannot be loaded: ${(error as Error).message}`, { cause: error });
    }
  }

  /** New memory of `bytes` that `fill` writes to, on top of what `source` holds; nobody can afterwards. */
  static async make(
    bytes: number,
    fill: (memory: FileHandle) => Promise<void>,
    source?: string,
  ): Promise<SealedMemory> {
    await using helper = new PerlHelper(MEMORY_SCRIPT, [
      'hold',
      String(bytes),
      ...(source === undefined ? [] : [source]),
    ]);
    const descriptor = Number(await helper.line(DEADLINE_MS));
    const file = await open(`/proc/${helper.pid}/fd/${descriptor}`, 'r+');
    try {
      await fill(file);
      helper.send('seal');
      await helper.line(DEADLINE_MS);
      return new SealedMemory(file);
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  /** Descriptor to hand to a VMM, valid until disposed. */
  get fd(): number {
    return this.#file.fd;
  }

  get file(): FileHandle {
    return this.#file;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
  }
}
