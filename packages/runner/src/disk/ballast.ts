import { rm, stat, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../process/index.ts';

const BALLAST_FILE = 'ballast';
const MOST_BYTES = 2 ** 30;
/** Of the file system, if that is less. */
const SHARE = 1 / 50;
/** The ballast is allocated only where there is this many times as much free. */
const FREE_FACTOR = 8;
const DEADLINE_MS = 60_000;
/** `f_type` of statfs(2) of tmpfs: its files take memory. */
const TMPFS = 0x01021994;

/**
 * A file whose only purpose is its allocated space. It is removed when the file system is nearly full: what guests have been told is
 * written, and is still in memory, then has space, however fast another program fills the file system before guests are paused.
 */
export class Ballast {
  readonly #path: string;
  readonly #folder: string;

  /** @param folder on the file system */
  constructor(folder: string) {
    this.#folder = folder;
    this.#path = join(folder, BALLAST_FILE);
  }

  /** Allocates the file if it is not there and there is plenty of space. Repeating it does nothing. */
  async allocate(): Promise<void> {
    const { type, bavail, blocks, bsize } = await statfs(this.#folder);
    const bytes = Math.floor(Math.min(MOST_BYTES, blocks * bsize * SHARE));
    const present = await stat(this.#path).catch(() => undefined);
    if (present !== undefined && present.blocks * 512 >= bytes) return;
    if (type === TMPFS || bavail * bsize < FREE_FACTOR * bytes) return;
    // A file system without fallocate(2) gets none: zeros that are written may be compressed.
    await run('fallocate', ['--length', String(bytes), this.#path], { deadlineMs: DEADLINE_MS }).catch(
      async (error: unknown) => {
        await this.release();
        throw error;
      },
    );
  }

  async release(): Promise<void> {
    await rm(this.#path, { force: true });
  }
}
