import { stat, statfs } from 'node:fs/promises';
import type { Logger } from 'pino';
import type { Ballast } from './ballast.ts';

/**
 * Guests are paused below this share of free space: at least `least`, because guests can write gigabytes per second, and at most
 * `most`; of a small file system no more than `smallShare`.
 */
const LOW = { share: 1 / 50, least: 2 ** 30, most: 8 * 2 ** 30, smallShare: 1 / 20 };
/**
 * The same for inodes, which PostgreSQL and the service's records need: below this share of them, and no more than `most`. A file system
 * that makes them as needed, as btrfs, counts none.
 */
const LOW_INODES = { share: 1 / 100, most: 20_000 };
/** Guests resume when there is this much more, so that they are not paused again immediately. */
const ENOUGH_FACTOR = 1.5;
/** Near the limit the interval is shorter, and farther off so short that no faster writers reach the limit unseen. */
const NEAR_FACTOR = 4;
const LOOK_EVERY_MS = { near: 100, far: 1_000 };
const FASTEST_BYTES_PER_S = 8 * 2 ** 30;

export interface SpaceWatchOptions {
  /** A folder on the file system that is watched. */
  folder: string;
  /** Called at each check below the limit, so that guests that have started since are paused too. */
  onShort: () => void;
  /** Released when space is short, and allocated again when there is enough. */
  ballast?: Pick<Ballast, 'allocate' | 'release'>;
  log: Logger;
  read?: () => Promise<Space>;
}

/** Of a file system, for unprivileged processes such as VMMs and PostgreSQL. */
export interface Space {
  freeBytes: number;
  totalBytes: number;
  freeInodes: number;
  /** 0: it has no fixed number of them. */
  totalInodes: number;
}

/**
 * Watches the file system of the tenants' disks. The database and the service's records may be on the same one: PostgreSQL
 * shuts down when it cannot write its WAL. So guests are paused while some space is left.
 */
export class SpaceWatch {
  readonly #options: SpaceWatchOptions;
  #timer: NodeJS.Timeout | undefined;
  #isShort = false;
  #last: Space | undefined;
  /** Undefined: there may be one of an earlier run. */
  #isReleased: boolean | undefined;
  #isClosed = false;

  constructor(options: SpaceWatchOptions) {
    this.#options = options;
    this.#lookAfter(0);
  }

  get folder(): string {
    return this.#options.folder;
  }

  /** What the last look has found; undefined before the first. */
  get last(): Space | undefined {
    return this.#last;
  }

  get isShort(): boolean {
    return this.#isShort;
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
  }

  /** The service also runs where there is no ballast. */
  async #adjustBallast(isShort: boolean): Promise<void> {
    const { ballast, folder, log } = this.#options;
    if (ballast === undefined || isShort === this.#isReleased) return;
    this.#isReleased = isShort;
    const adjusted = isShort ? ballast.release() : ballast.allocate();
    await adjusted.catch((error: unknown) => log.warn({ err: error, folder }, 'no space could be set aside'));
  }

  #lookAfter(ms: number): void {
    if (this.#isClosed) return;
    this.#timer = setTimeout(() => void this.#look(), ms).unref();
  }

  async #look(): Promise<void> {
    const { folder, onShort, log, read = () => spaceOf(folder) } = this.#options;
    let next = LOOK_EVERY_MS.far;
    try {
      const space = await read();
      this.#last = space;
      const { freeBytes, totalBytes, freeInodes } = space;
      const low = lowBytes(totalBytes);
      const factor = this.#isShort ? ENOUGH_FACTOR : 1;
      const isShort = freeBytes < low * factor || hasFewInodes(space, factor);
      if (isShort !== this.#isShort) {
        const facts = { folder, free_mib: Math.floor(freeBytes / 2 ** 20), free_inodes: freeInodes };
        if (isShort) log.error(facts, "the host's disk is nearly full: all guests are paused");
        else log.info(facts, "the host's disk has space again: guests are resumed");
      }
      this.#isShort = isShort;
      if (isShort) onShort();
      next = lookAfterMs(freeBytes, low);
      await this.#adjustBallast(isShort);
    } catch (error) {
      log.warn({ err: error, folder }, 'the space of a file system cannot be read');
    }
    this.#lookAfter(next);
  }
}

/** @param low free space below which guests are paused */
export function lookAfterMs(freeBytes: number, low: number): number {
  if (freeBytes < low * NEAR_FACTOR) return LOOK_EVERY_MS.near;
  return Math.min(((freeBytes - low) / FASTEST_BYTES_PER_S) * 1000, LOOK_EVERY_MS.far);
}

/** Free space of a file system below which guests are paused. */
export function lowBytes(totalBytes: number): number {
  const share = Math.min(Math.max(LOW.least, totalBytes * LOW.share), LOW.most);
  return Math.min(share, totalBytes * LOW.smallShare);
}

/** Whether a file system has fewer than `factor` times the inodes at which guests are paused. */
export function hasFewInodes({ freeInodes, totalInodes }: Space, factor = 1): boolean {
  return freeInodes < Math.min(totalInodes * LOW_INODES.share, LOW_INODES.most) * factor;
}

export async function spaceOf(folder: string): Promise<Space> {
  const { bavail, blocks, bsize, ffree, files } = await statfs(folder);
  return {
    freeBytes: bavail * bsize,
    totalBytes: blocks * bsize,
    freeInodes: ffree,
    totalInodes: files,
  };
}

/** The first of these folders on each file system. */
export async function fileSystemsOf(folders: readonly string[]): Promise<string[]> {
  const devices = new Map<number, string>();
  for (const folder of folders) {
    const { dev } = await stat(folder);
    if (!devices.has(dev)) devices.set(dev, folder);
  }
  return [...devices.values()];
}
