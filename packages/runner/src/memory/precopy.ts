import { HostdProcess } from '../host/hostd.ts';
import { captureError } from './cow-clone.ts';
import type { GuestMemory } from './guest-memory.ts';

const READY_DEADLINE_MS = 15_000;
/** Of one round while the guest runs. */
const COPY_DEADLINE_MS = 120_000;
/** Of the last round, while the guest is paused. */
const LAST_DEADLINE_MS = 30_000;
/** Of all rounds of `approach`. */
const APPROACH_LIMIT_MS = 30_000;
/** The guest is paused once the dirty pages are at most this much: they are copied in a few milliseconds. */
const REST_BYTES = 4 * 1024 * 1024;
/** Pre-copy rounds. A guest that dirties memory faster than it is copied does not converge. */
const ROUNDS = 5;

/** Whether the kernel tracks writes (Linux 6.7). Checked once. */
let isSupported = true;

/**
 * Copies the memory of a VMM to a file while its guest runs, in rounds: each copies the pages that were dirtied during the
 * previous one. The guest is paused only for the last round, whose length does not depend on the size of the memory.
 */
export class Precopy implements AsyncDisposable {
  readonly #helper: HostdProcess;

  private constructor(helper: HostdProcess) {
    this.#helper = helper;
  }

  /**
   * Copies all anonymous pages of the VMM's private mapping.
   * @param target descriptor of a file as large as the memory
   * @returns undefined where the kernel cannot track writes
   * @throws when the VMM cannot be traced
   */
  static async begin(memory: GuestMemory, target: number): Promise<Precopy | undefined> {
    if (!isSupported) return undefined;
    const { pid, address, bytes } = memory;
    const path = `/proc/${process.pid}/fd/${target}`;
    const helper = new HostdProcess('precopy', [...[pid, address, bytes].map(String), path]);
    try {
      isSupported = (await helper.line(READY_DEADLINE_MS)) === 'ready';
      if (isSupported) {
        const precopy = new Precopy(helper);
        await precopy.#copy('all');
        return precopy;
      }
    } catch (error) {
      await helper[Symbol.asyncDispose]();
      throw captureError(error);
    }
    await helper[Symbol.asyncDispose]();
    return undefined;
  }

  /** Copies dirty pages until few are left. @returns false when the guest dirties memory too fast to converge */
  async approach(): Promise<boolean> {
    const end = performance.now() + APPROACH_LIMIT_MS;
    for (let round = 0; round < ROUNDS && performance.now() < end; round++)
      if ((await this.#copy('rest')) <= REST_BYTES) return true;
    return false;
  }

  /** Copies the remaining dirty pages of a paused guest. Afterwards the file is complete. */
  async take(): Promise<void> {
    await this.#copy('last');
  }

  /** @returns bytes that were copied */
  async #copy(order: 'all' | 'rest' | 'last'): Promise<number> {
    this.#helper.send(order);
    try {
      const line = await this.#helper.line(order === 'last' ? LAST_DEADLINE_MS : COPY_DEADLINE_MS);
      const bytes = /^copied (\d+)$/.exec(line)?.[1];
      if (bytes === undefined) throw new Error(`hostd printed ${JSON.stringify(line)}`);
      return Number(bytes);
    } catch (error) {
      throw captureError(error);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#helper[Symbol.asyncDispose]();
  }
}
