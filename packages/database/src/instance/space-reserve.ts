import { mkdir, open, rm, stat, statfs } from 'node:fs/promises';
import path from 'node:path';
import type { Logger } from 'pino';

/** Four segments of PostgreSQL's log: space for the writes of the deletes that free more. */
const RESERVE_BYTES = 64 * 1024 * 1024;
const CHUNK = Buffer.alloc(1024 * 1024);
const LOOK_EVERY_MS = 1_000;
/** The reserve is released when less than this is free, and made where this much is free beside it. */
const EMERGENCY_BYTES = 32 * 1024 * 1024;
const PLENTY_BYTES = 1024 * 1024 * 1024;

export interface SpaceReserveOptions {
  /** Folder of the instance, on the file system of its data. */
  dir: string;
  log: Logger;
  /** Free bytes, for tests. */
  read?: () => Promise<number>;
  everyMs?: number;
}

/**
 * A file that takes space until PostgreSQL needs it: a server that cannot write its log ends itself, and does not come
 * up again. Released, it lets sandboxes be deleted and so make space.
 */
export class SpaceReserve implements AsyncDisposable {
  readonly path: string;
  readonly #options: SpaceReserveOptions;
  #timer: NodeJS.Timeout | undefined;
  #looking: Promise<void> = Promise.resolve();
  #isClosed = false;

  private constructor(options: SpaceReserveOptions) {
    this.#options = options;
    this.path = path.join(options.dir, 'reserve');
  }

  /** To be opened before the server starts: on a full file system it is released at once. */
  static async open(options: SpaceReserveOptions): Promise<SpaceReserve> {
    await mkdir(options.dir, { recursive: true, mode: 0o700 });
    const reserve = new SpaceReserve(options);
    await reserve.#look(false);
    reserve.#lookAfter(options.everyMs ?? LOOK_EVERY_MS);
    return reserve;
  }

  /** The file stays: it is needed most where no server runs. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    await this.#looking;
  }

  #lookAfter(ms: number): void {
    if (this.#isClosed) return;
    this.#timer = setTimeout(() => {
      this.#looking = this.#look(true).finally(() => this.#lookAfter(this.#options.everyMs ?? LOOK_EVERY_MS));
    }, ms).unref();
  }

  async #look(mayFill: boolean): Promise<void> {
    const { dir, log, read = () => freeBytes(dir) } = this.#options;
    try {
      const free = await read();
      const hasReserve = (await stat(this.path).catch(() => undefined))?.size === RESERVE_BYTES;
      if (hasReserve && free < EMERGENCY_BYTES) {
        await rm(this.path);
        log.error(
          { dir, free_mib: Math.floor(free / 2 ** 20) },
          "the database's file system is full: its reserve of 64 MiB is released; delete sandboxes or snapshots",
        );
      } else if (mayFill && !hasReserve && free > PLENTY_BYTES + RESERVE_BYTES) await this.#fill();
    } catch (error) {
      log.warn({ err: error, dir }, "the database's reserve of space could not be looked after");
    }
  }

  async #fill(): Promise<void> {
    try {
      await using file = await open(this.path, 'w', 0o600);
      for (let at = 0; at < RESERVE_BYTES; at += CHUNK.length) await file.write(CHUNK, 0, CHUNK.length, at);
      await file.sync();
    } catch (error) {
      await rm(this.path, { force: true });
      throw error;
    }
  }
}

async function freeBytes(dir: string): Promise<number> {
  const { bavail, bsize } = await statfs(dir);
  return bavail * bsize;
}
