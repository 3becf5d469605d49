import { HOSTD, HostdProcess } from '../host/hostd.ts';
import { run } from '../process/index.ts';
import { DEADLINES_MS, SLOWEST_COPY_BYTES_A_MS } from '../vmm/tuning.ts';
import type { PrecopyTuning } from '../vmm/tuning.ts';
import type { GuestMemory } from './guest-memory.ts';

interface PrecopyOptions {
  /** Called with the reason when the VMM cannot be traced; nothing is copied then until the guest is paused. */
  onUntraceable?: (error: Error) => void;
}

/**
 * Where memory is copied to: the descriptor of a file as large as it, or the memory of a VMM whose guest has not run, which then
 * has these pages for its own.
 */
export type PrecopyTarget = number | GuestMemory;

/**
 * Copies the memory of a VMM to a file or to another VMM while its guest runs, in rounds: each copies the pages that were dirtied during the
 * previous one. The guest is paused only for the last round, whose length does not depend on the size of the memory.
 *
 * Only the pages that the VMM has written to are copied: the target must have the content that the VMM maps, or had when the
 * writes that are copied began. Where the kernel cannot track writes (before Linux 6.7) there is one round, and where it does not
 * mark them either nothing is copied until the guest is paused.
 */
export class Precopy implements AsyncDisposable {
  /** False for tests: as on a kernel that cannot track writes. */
  static tracksWrites = true;

  /** The last copy of each VM's memory: the kernel knows only what was written since that one. */
  static readonly #latest = new WeakMap<object, Precopy>();

  readonly #vm: object;
  readonly #helper: HostdProcess;
  readonly #roundMs: number;
  #isTracked = false;
  #isComplete = false;

  private constructor(
    vm: object,
    { pid, address, bytes }: GuestMemory,
    target: PrecopyTarget,
    tracked: boolean,
  ) {
    this.#vm = vm;
    const to =
      typeof target === 'number' ? `/proc/${process.pid}/fd/${target}` : `${target.pid}:${target.address}`;
    const place = [pid, address, bytes].map(String);
    this.#helper = new HostdProcess('precopy', [...place, to, ...(tracked ? [] : ['untracked'])]);
    this.#roundMs = DEADLINES_MS.precopyRound + bytes / SLOWEST_COPY_BYTES_A_MS;
  }

  /**
   * Copies all anonymous pages of the VMM's private mapping.
   * @param vm whose memory it is
   * @throws when the VMM cannot be traced, without `onUntraceable`
   */
  static async begin(
    vm: object,
    memory: GuestMemory,
    target: PrecopyTarget,
    { onUntraceable }: PrecopyOptions = {},
  ): Promise<Precopy> {
    const precopy = await Precopy.#start(vm, memory, target).catch(async (error: unknown) => {
      if (onUntraceable === undefined) throw error;
      onUntraceable(error as Error);
      return await Precopy.#start(vm, memory, target, false);
    });
    try {
      await precopy.#order('all');
      return precopy;
    } catch (error) {
      await precopy[Symbol.asyncDispose]();
      throw error;
    }
  }

  /**
   * Copies what was written since this copy was complete, to another target.
   * @returns undefined when that is not known
   */
  async follow(memory: GuestMemory, target: PrecopyTarget): Promise<Precopy | undefined> {
    if (!this.#isTracked || !this.#isComplete || Precopy.#latest.get(this.#vm) !== this) return undefined;
    return await Precopy.#start(this.#vm, memory, target);
  }

  static async #start(
    vm: object,
    memory: GuestMemory,
    target: PrecopyTarget,
    tracked = Precopy.tracksWrites,
  ): Promise<Precopy> {
    const precopy = new Precopy(vm, memory, target, tracked);
    // Whatever becomes of it, it may have reset what the kernel has tracked.
    Precopy.#latest.set(vm, precopy);
    try {
      precopy.#isTracked = (await precopy.#helper.line(DEADLINES_MS.precopyStart)) === 'tracked';
      return precopy;
    } catch (error) {
      await precopy[Symbol.asyncDispose]();
      throw copyError(error);
    }
  }

  /** Bytes that the next round would copy. */
  async count(): Promise<number> {
    return await this.#order('count');
  }

  /** Copies dirty pages until few are left. @returns false when the guest dirties memory too fast to converge */
  async approach({ restBytes, converges, roundsMs }: PrecopyTuning): Promise<boolean> {
    const end = performance.now() + roundsMs;
    for (let before = Infinity; performance.now() < end; ) {
      const copied = await this.#order('rest');
      if (copied <= restBytes) return true;
      if (copied > before * converges) return false;
      before = copied;
    }
    return false;
  }

  /** Copies the remaining dirty pages of a paused guest. Afterwards the file is complete. */
  async take(): Promise<void> {
    await this.#order('last');
    this.#isComplete = true;
  }

  /** @returns bytes that were copied */
  async #order(order: 'all' | 'rest' | 'count' | 'last'): Promise<number> {
    this.#helper.send(order);
    try {
      const isShort = order === 'last' && this.#isTracked;
      const line = await this.#helper.line(isShort ? DEADLINES_MS.precopyLast : this.#roundMs);
      const bytes = /^copied (\d+)$/.exec(line)?.[1];
      if (bytes === undefined) throw new Error(`hostd printed ${JSON.stringify(line)}`);
      return Number(bytes);
    } catch (error) {
      throw copyError(error);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#helper[Symbol.asyncDispose]();
  }
}

/**
 * Writes the data of a sparse file into the memory of a VMM whose guest has not run yet. What the VMM maps there does not
 * change.
 */
export async function applyPages(path: string, { pid, address, bytes }: GuestMemory): Promise<void> {
  await run(HOSTD, ['apply', path, ...[pid, address, bytes].map(String)], {
    deadlineMs: DEADLINES_MS.copyMemory,
  });
}

/** Wraps an error of hostd in a message for users. ENOSPC of the target stays recognizable by its text. */
function copyError(error: unknown): Error {
  return new Error(`the memory of a running micro-VM could not be copied: ${(error as Error).message}`, {
    cause: error,
  });
}
