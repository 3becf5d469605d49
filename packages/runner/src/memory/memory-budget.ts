import { totalmem } from 'node:os';
import type { HeldMemory } from '@releap/contract/runner';
import { availableMemory, checkAvailable, InsufficientMemoryError, isScarce } from './available-memory.ts';

/** Share of the host's memory that may be held outside the limits of sandboxes. */
const SHARE_OF_HOST = 1 / 2;
/** Share of that for one project. */
const SHARE_OF_PROJECT = 3 / 4;
/** Share of that for one sandbox or snapshot. */
const SHARE_OF_ORIGIN = 1 / 2;

const MIB = 2 ** 20;

/** What a grant is accounted to. */
export interface MemoryOwner {
  /** The sandbox or snapshot whose memory it is. */
  origin: string;
  /** Absent when the control plane does not name it. */
  project?: string | undefined;
}

/** Memory that is accounted for. To be disposed of when the memory is released. */
export interface MemoryGrant extends Disposable {
  /** The memory has been written: MemAvailable no longer includes it. */
  used(): void;
  /** The memory is only a cache from now on: `release` is called when another request needs the capacity. */
  isSpare(release: () => void): void;
}

interface Entry {
  owner: MemoryOwner;
  bytes: number;
  isUsed: boolean;
  release?: (() => void) | undefined;
}

/** Why a request does not fit, and which entries could be released for it. */
interface Obstacle {
  error: Error;
  among: (entry: Entry) => boolean;
  /** The host is short of memory, for any use. */
  isHostShort: boolean;
}

/**
 * Accounts for memory of the host that serves sandboxes outside their cgroup limits: memory that the children of a fork
 * share, memory of snapshots that are restored. A request is refused before the host would run out of memory.
 */
export class MemoryBudget {
  readonly #maxBytes: number;
  readonly #available: () => Promise<number>;
  readonly #entries = new Set<Entry>();
  #releaseOther: () => Promise<boolean> = () => Promise.resolve(false);

  constructor(options: { maxBytes?: number; available?: () => Promise<number> } = {}) {
    this.#maxBytes = options.maxBytes ?? totalmem() * SHARE_OF_HOST;
    this.#available = options.available ?? availableMemory;
  }

  /**
   * Adds other memory that is released when the host is short of it and nothing here can be.
   * @param release releases a part and resolves when it is free; false when there is nothing left
   */
  alsoRelease(release: () => Promise<boolean>): void {
    this.#releaseOther = release;
  }

  /** As heartbeats report it to the control plane. */
  get held(): HeldMemory {
    const mib = (entries: Entry[]): number => Math.ceil(sum(entries) / MIB);
    const entries = [...this.#entries];
    const spare = entries.filter(({ release }) => release !== undefined);
    return { mem_mib: mib(entries), reclaimable_mib: mib(spare) };
  }

  /**
   * Releases spare memory if necessary, first of the project that holds most, and there of the largest origin.
   * @param what names the request in errors: `a fork of this sandbox`
   * @param bytes upper bound of the allocation
   * @throws InsufficientMemoryError
   */
  async admit(what: string, owner: MemoryOwner, bytes: number): Promise<MemoryGrant> {
    for (;;) {
      const obstacle = this.#obstacle(what, owner, bytes, await this.#available());
      if (obstacle === undefined) break;
      if (this.#releaseOne(obstacle.among)) continue;
      if (!obstacle.isHostShort || !(await this.#releaseOther())) throw obstacle.error;
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

  /** Releases one spare entry if the host is short of memory. To be called periodically: freeing takes time. */
  async relieve(): Promise<void> {
    if (isScarce(await this.#available())) this.#releaseOne(() => true);
  }

  #obstacle(what: string, owner: MemoryOwner, bytes: number, available: number): Obstacle | undefined {
    // Granted and not written yet: MemAvailable still includes it.
    const promised = sum([...this.#entries].filter(({ isUsed }) => !isUsed));
    try {
      checkAvailable(what, bytes, available - promised);
    } catch (error) {
      return { error: error as Error, among: () => true, isHostShort: true };
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

  /** The first entry of a project or origin may exceed its share, as no other one is displaced. */
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
      isHostShort: false,
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
/** An entry without a project is accounted to its origin alone. */
const projectOf = ({ project, origin }: MemoryOwner): string => project ?? origin;

function sum(entries: Iterable<Entry>): number {
  let bytes = 0;
  for (const entry of entries) bytes += entry.bytes;
  return bytes;
}
