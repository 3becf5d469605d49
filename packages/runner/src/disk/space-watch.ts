import { statfs } from 'node:fs/promises';
import type { Logger } from 'pino';

/** Below this, or that part of a small file system, what tenants write stops. New disks are refused earlier. */
const LOW_BYTES = 128 * 1024 * 1024;
const LOW_SHARE = 1 / 50;
/** They continue when there is so much more, so that they do not stop again at once. */
const ENOUGH_FACTOR = 1.5;
/** Near the bound it is looked at more often: a guest may write a gigabyte a second. */
const NEAR_BYTES = 4 * 1024 ** 3;
const LOOK_EVERY_MS = { near: 100, far: 1_000 };

export interface SpaceWatchOptions {
  /** On the file system that is watched. */
  folder: string;
  /** Called each time it is found short: also what has begun since must stop. */
  onShort: () => void;
  log: Logger;
  read?: () => Promise<{ freeBytes: number; totalBytes: number }>;
}

/**
 * Watches the file system that tenants' disks are on. The database and the service's records may lie there, too, and
 * break where it is full: PostgreSQL ends itself when it cannot write its log. So guests are paused while some is left.
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

/** What processes other than root's may write: VMMs and PostgreSQL are such. */
async function spaceOf(folder: string): Promise<{ freeBytes: number; totalBytes: number }> {
  const { bavail, blocks, bsize } = await statfs(folder);
  return { freeBytes: bavail * bsize, totalBytes: blocks * bsize };
}
