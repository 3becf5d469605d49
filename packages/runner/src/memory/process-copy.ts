import { fileURLToPath } from 'node:url';
import type { GuestMemory } from './guest-memory.ts';
import { PerlHelper } from './perl-helper.ts';

const SCRIPT = fileURLToPath(new URL('./process-copy.pl', import.meta.url));
const READY_DEADLINE_MS = 15_000;
/** A millisecond, and one more for each 100 MB that the guest has touched. */
const COPY_DEADLINE_MS = 30_000;

/**
 * An instant copy of a VMM's memory, guest and all, to be read while the VMM goes on: what both still have in common
 * exists once. The copy is a process that never runs, and goes with this object or with us.
 */
export class ProcessCopy implements AsyncDisposable {
  readonly #helper: PerlHelper;
  readonly #memory: GuestMemory;

  private constructor(helper: PerlHelper, memory: GuestMemory) {
    this.#helper = helper;
    this.#memory = memory;
  }

  /** Gets ready, so that `take` is quick. @throws when the process cannot be traced */
  static async prepare(memory: GuestMemory): Promise<ProcessCopy> {
    const { pid, address, bytes } = memory;
    const helper = new PerlHelper(SCRIPT, [String(pid), String(address), String(bytes)]);
    try {
      await helper.line(READY_DEADLINE_MS);
      return new ProcessCopy(helper, memory);
    } catch (error) {
      await helper[Symbol.asyncDispose]();
      throw explained(error);
    }
  }

  /** Copies now. Once. The guest's memory in the copy has the address that it has in the VMM. */
  async take(): Promise<GuestMemory> {
    this.#helper.send('copy');
    try {
      return { ...this.#memory, pid: Number(await this.#helper.line(COPY_DEADLINE_MS)) };
    } catch (error) {
      throw explained(error);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#helper[Symbol.asyncDispose]();
  }
}

function explained(error: unknown): Error {
  return new Error(`the memory of a running micro-VM could not be copied: ${(error as Error).message}`, {
    cause: error,
  });
}
