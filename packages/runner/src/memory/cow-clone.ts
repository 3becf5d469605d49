import { HostdProcess } from '../host/hostd.ts';
import type { GuestMemory } from './guest-memory.ts';

const READY_DEADLINE_MS = 15_000;
/** fork(2) takes a millisecond, and one more for each 100 MB that the guest has touched. */
const COPY_DEADLINE_MS = 30_000;

/**
 * A copy-on-write clone of a VMM process, whose memory is read while the VMM continues. Pages that neither has written
 * since are shared. The clone never runs, and ends when this object is disposed or the runner ends.
 */
export class CowClone implements AsyncDisposable {
  readonly #helper: HostdProcess;
  readonly #memory: GuestMemory;

  private constructor(helper: HostdProcess, memory: GuestMemory) {
    this.#helper = helper;
    this.#memory = memory;
  }

  /** Does all that can be done before the clone, so that `take` is fast. @throws when the process cannot be traced */
  static async prepare(memory: GuestMemory): Promise<CowClone> {
    const { pid, address, bytes } = memory;
    const helper = new HostdProcess('cow-clone', [String(pid), String(address), String(bytes)]);
    try {
      await helper.line(READY_DEADLINE_MS);
      return new CowClone(helper, memory);
    } catch (error) {
      await helper[Symbol.asyncDispose]();
      throw captureError(error);
    }
  }

  /** Clones the process. To be called once. The guest's memory has the same address in the clone as in the VMM. */
  async take(): Promise<GuestMemory> {
    this.#helper.send('copy');
    try {
      return { ...this.#memory, pid: Number(await this.#helper.line(COPY_DEADLINE_MS)) };
    } catch (error) {
      throw captureError(error);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#helper[Symbol.asyncDispose]();
  }
}

/** Wraps an error of hostd in a message for users. */
export function captureError(error: unknown): Error {
  return new Error(`the memory of a running micro-VM could not be copied: ${(error as Error).message}`, {
    cause: error,
  });
}
