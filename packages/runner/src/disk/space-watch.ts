import { statfs } from 'node:fs/promises';
import type { Logger } from 'pino';

/** Guests are paused below this much free space, or this share of a small file system. New disks are refused earlier. */
const LOW_BYTES = 128 * 1024 * 1024;
const LOW_SHARE = 1 / 50;
/** Guests resume when there is this much more, so that they are not paused again immediately. */
const ENOUGH_FACTOR = 1.5;
/** Near the limit the interval is shorter: a guest can write a gigabyte per second. */
const NEAR_BYTES = 4 * 1024 ** 3;
const LOOK_EVERY_MS = { near: 100, far: 1_000 };

export interface SpaceWatchOptions {
  /** A folder on the file system that is watched. */
  folder: string;
  /** Called at each check below the limit, so that guests that have started since are paused too. */
  onShort: () => void;
  log: Logger;
  read?: () => Promise<{ freeBytes: number; totalBytes: number }>;
}

/**
 * Watches the file system of the tenants' disks. The database and the service's records may be on the same one: PostgreSQL
 * shuts down when it cannot write its WAL. So guests are paused while some space is left.
 */
export class SpaceWatch {
  readonly #options: SpaceWatchOptions;
  #timer: NodeJS.Timeout | undefined;
  #isShort = false;
  #isClosed = false;

  constructor(options: SpaceWatchOptions) {
    this.#options = options;
    this.#lookAfter(0);
  }

  get isShort(): boolean {
    return this.#isShort;
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  #lookAfter(ms: number): void {
    if (this.#isClosed) return;
    this.#timer = setTimeout(() => void this.#look(), ms).unref();
  }

  async #look(): Promise<void> {
    const { folder, onShort, log, read = () => spaceOf(folder) } = this.#options;
    let next = LOOK_EVERY_MS.far;
    try {
      const { freeBytes, totalBytes } = await read();
      const low = Math.min(LOW_BYTES, totalBytes * LOW_SHARE);
      const isShort = freeBytes < (this.#isShort ? low * ENOUGH_FACTOR : low);
      if (isShort !== this.#isShort) {
        const facts = { folder, free_mib: Math.floor(freeBytes / 2 ** 20) };
        if (isShort) log.error(facts, "the host's disk is nearly full: all guests are paused");
        else log.info(facts, "the host's disk has space again: guests are resumed");
      }
      this.#isShort = isShort;
      if (isShort) onShort();
      if (freeBytes < NEAR_BYTES) next = LOOK_EVERY_MS.near;
    } catch (error) {
      log.warn({ err: error, folder }, 'the space of a file system cannot be read');
    }
    this.#lookAfter(next);
  }
}

/** Free space for unprivileged processes, such as VMMs and PostgreSQL. */
export async function spaceOf(folder: string): Promise<{ freeBytes: number; totalBytes: number }> {
  const { bavail, blocks, bsize } = await statfs(folder);
  return { freeBytes: bavail * bsize, totalBytes: blocks * bsize };
}
