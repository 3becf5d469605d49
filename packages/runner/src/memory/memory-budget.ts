import { totalmem } from 'node:os';
import { availableMemory, checkAvailable, InsufficientMemoryError } from './available-memory.ts';

/** So much of the host's memory may be held outside the limits of sandboxes. */
const SHARE_OF_HOST = 1 / 2;
/** And so much of that for one sandbox or snapshot, as soon as others want it. */
const SHARE_OF_OWNER = 1 / 2;

/** Memory that is held; to be disposed of when it is released. */
export interface MemoryGrant extends Disposable {
  /** It has been written, and MemAvailable is without it. */
  used(): void;
  /** It is kept only in case it is needed again: `release` is called when others need it more. */
  isSpare(release: () => void): void;
}

interface Entry {
  owner: string;
  bytes: number;
  isUsed: boolean;
  release?: (() => void) | undefined;
}

/**
 * Memory of the host that serves sandboxes and that no limit of theirs bounds: what the children of a fork have in common,
 * the memory of snapshots that are restored, copies of VMMs. It is refused before the kernel would have to end a process.
 */
export class MemoryBudget {
  readonly #maxBytes: number;
  readonly #available: () => Promise<number>;
  readonly #entries = new Set<Entry>();

  constructor(options: { maxBytes?: number; available?: () => Promise<number> } = {}) {
    this.#maxBytes = options.maxBytes ?? totalmem() * SHARE_OF_HOST;
    this.#available = options.available ?? availableMemory;
  }

  get heldBytes(): number {
    return sum(this.#entries);
  }

  /** By the sandbox or snapshot that it serves. */
  heldBy(owner: string): number {
    return sum([...this.#entries].filter((entry) => entry.owner === owner));
  }

  /**
   * Memory that is spare is released first, of whom most is held.
   * @param what for the error: `a fork of this sandbox`
   * @param bytes what it may take
   * @throws InsufficientMemoryError
   */
  async admit(what: string, owner: string, bytes: number): Promise<MemoryGrant> {
    for (;;) {
      const available = await this.#available();
      try {
        this.#check(what, owner, bytes, available);
        break;
      } catch (error) {
        if (!this.#releaseOne()) throw error;
      }
    }
    const entry: Entry = { owner, bytes, isUsed: false };
    this.#entries.add(entry);
    return {
      used: () => {
        entry.isUsed = true;
      },
      isSpare: (release) => {
        entry.release = release;
      },
      [Symbol.dispose]: () => void this.#entries.delete(entry),
    };
  }

  #check(what: string, owner: string, bytes: number, available: number): void {
    // Granted and not written yet: the kernel does not know of it.
    const promised = sum([...this.#entries].filter(({ isUsed }) => !isUsed));
    checkAvailable(what, bytes, available - promised);
    const mib = (value: number): number => Math.ceil(value / 2 ** 20);
    if (this.heldBytes + bytes > this.#maxBytes) {
      throw new InsufficientMemoryError(
        `the host holds ${mib(this.heldBytes)} MiB for forks and snapshots already, of at most ` +
          `${mib(this.#maxBytes)} MiB; ${what} would take ${mib(bytes)} MiB more`,
      );
    }
    const held = this.heldBy(owner);
    if (held > 0 && held + bytes > this.#maxBytes * SHARE_OF_OWNER) {
      throw new InsufficientMemoryError(
        `${mib(held)} MiB are held for forks and snapshots of the same origin, of at most ` +
          `${mib(this.#maxBytes * SHARE_OF_OWNER)} MiB; ${what} would take ${mib(bytes)} MiB more`,
      );
    }
  }

  #releaseOne(): boolean {
    const spare = [...this.#entries].filter(({ release }) => release !== undefined);
    // The oldest of the largest owner: the sort keeps their order.
    const [first] = spare.toSorted((a, b) => this.heldBy(b.owner) - this.heldBy(a.owner));
    if (first === undefined) return false;
    this.#entries.delete(first);
    first.release?.();
    return true;
  }
}

function sum(entries: Iterable<Entry>): number {
  let bytes = 0;
  for (const entry of entries) bytes += entry.bytes;
  return bytes;
}
