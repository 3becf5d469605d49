import { totalmem } from 'node:os';
import type { HeldMemory } from '@releap/contract/runner';
import { availableMemory, checkAvailable, InsufficientMemoryError, isScarce } from './available-memory.ts';

/** So much of the host's memory may be held outside the limits of sandboxes, */
const SHARE_OF_HOST = 1 / 2;
/** so much of that for one project, */
const SHARE_OF_PROJECT = 3 / 4;
/** and so much for one sandbox or snapshot. */
const SHARE_OF_ORIGIN = 1 / 2;

const MIB = 2 ** 20;

/** Whom memory is held for. */
export interface MemoryOwner {
  /** The sandbox or snapshot whose memory it is. */
  origin: string;
  /** Absent when the control plane does not name it. */
  project?: string | undefined;
}

/** Memory that is held; to be disposed of when it is released. */
export interface MemoryGrant extends Disposable {
  /** It has been written, and MemAvailable is without it. */
  used(): void;
  /** It is kept only in case it is needed again: `release` is called when others need it more. */
  isSpare(release: () => void): void;
}

interface Entry {
  owner: MemoryOwner;
  bytes: number;
  isUsed: boolean;
  release?: (() => void) | undefined;
}

/** What stands against a request, and the entries of which one has to go. */
interface Obstacle {
  error: Error;
  among: (entry: Entry) => boolean;
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

  /** For the control plane. */
  get held(): HeldMemory {
    const mib = (entries: Entry[]): number => Math.ceil(sum(entries) / MIB);
    const entries = [...this.#entries];
    const spare = entries.filter(({ release }) => release !== undefined);
    return { mem_mib: mib(entries), reclaimable_mib: mib(spare) };
  }

  /**
   * Memory that is spare is released first: of the project for which most is held, of its largest origin.
   * @param what for the error: `a fork of this sandbox`
   * @param bytes what it may take
   * @throws InsufficientMemoryError
   */
  async admit(what: string, owner: MemoryOwner, bytes: number): Promise<MemoryGrant> {
    for (;;) {
      const obstacle = this.#obstacle(what, owner, bytes, await this.#available());
      if (obstacle === undefined) break;
      if (!this.#releaseOne(obstacle.among)) throw obstacle.error;
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

  /** Releases some spare memory if the host is short of it. To be called again and again: freeing takes a moment. */
  async relieve(): Promise<void> {
    if (isScarce(await this.#available())) this.#releaseOne(() => true);
  }

  #obstacle(what: string, owner: MemoryOwner, bytes: number, available: number): Obstacle | undefined {
    // Granted and not written yet: the kernel does not know of it.
    const promised = sum([...this.#entries].filter(({ isUsed }) => !isUsed));
    try {
      checkAvailable(what, bytes, available - promised);
    } catch (error) {
      return { error: error as Error, among: () => true };
    }
    const project = projectOf(owner);
    return (
      this.#overShare(what, bytes, 'on this host', 1, () => true) ??
      this.#overShare(what, bytes, 'of the same project', SHARE_OF_PROJECT, (entry) => {
        return projectOf(entry.owner) === project;
      }) ??
      this.#overShare(what, bytes, 'of the same origin', SHARE_OF_ORIGIN, (entry) => {
        return entry.owner.origin === owner.origin;
      })
    );
  }

  /** The first of its kind may be larger than the share of one: others lose nothing by it yet. */
  #overShare(
    what: string,
    bytes: number,
    whose: string,
    share: number,
    among: Obstacle['among'],
  ): Obstacle | undefined {
    const held = sum([...this.#entries].filter(among));
    const most = this.#maxBytes * share;
    if (held + bytes <= most || (share < 1 && held === 0)) return undefined;
    const mib = (value: number): number => Math.ceil(value / MIB);
    return {
      error: new InsufficientMemoryError(
        `${mib(held)} MiB are held for forks and snapshots ${whose}, of at most ${mib(most)} MiB; ` +
          `${what} would take ${mib(bytes)} MiB more`,
      ),
      among,
    };
  }

  #releaseOne(among: Obstacle['among']): boolean {
    const spare = [...this.#entries].filter((entry) => entry.release !== undefined && among(entry));
    const heldBy = (key: (owner: MemoryOwner) => string, { owner }: Entry): number =>
      sum([...this.#entries].filter((entry) => key(entry.owner) === key(owner)));
    // The oldest of the largest: the sort keeps their order.
    const [first] = spare.toSorted(
      (a, b) => heldBy(projectOf, b) - heldBy(projectOf, a) || heldBy(originOf, b) - heldBy(originOf, a),
    );
    if (first === undefined) return false;
    this.#entries.delete(first);
    first.release?.();
    return true;
  }
}

const originOf = ({ origin }: MemoryOwner): string => origin;
/** What has no project counts by itself. */
const projectOf = ({ project, origin }: MemoryOwner): string => project ?? origin;

function sum(entries: Iterable<Entry>): number {
  let bytes = 0;
  for (const entry of entries) bytes += entry.bytes;
  return bytes;
}
