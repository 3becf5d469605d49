import { EventEmitter } from 'node:events';
import { type FileHandle, mkdir, open, rename, stat } from 'node:fs/promises';
import { dirname } from 'node:path';

/** Size at which a log is rotated; with its predecessor a log holds at most twice as much. */
export const LOG_FILE_MAX_BYTES = 1024 * 1024;
/** Bytes that may wait for the disk; what a sandbox prints beyond that is dropped, and the drop is marked. */
const BACKLOG_MAX_BYTES = 1024 * 1024;

/**
 * A log that a hostile writer cannot grow: the file `path` and the one before it, `path.1`. It outlives the
 * sandbox that wrote it. Writing never blocks the writer: a guest must not block because a disk does.
 */
export class LogFile {
  readonly path: string;
  readonly #rotateAt: number;
  readonly #events = new EventEmitter().setMaxListeners(0);
  #file: FileHandle | undefined;
  #size = 0;
  #backlog = 0;
  #dropped = 0;
  #tail: Promise<void> = Promise.resolve();
  #isClosed = false;

  /** @param rotateAt size at which it is rotated; `Infinity` for a writer that bounds itself */
  constructor(path: string, rotateAt = LOG_FILE_MAX_BYTES) {
    this.path = path;
    this.#rotateAt = rotateAt;
  }

  write(chunk: Buffer): void {
    this.#events.emit('chunk', chunk);
    if (this.#backlog + chunk.length > BACKLOG_MAX_BYTES) {
      this.#dropped += chunk.length;
      return;
    }
    this.#backlog += chunk.length;
    const dropped = this.#dropped;
    this.#dropped = 0;
    this.#tail = this.#tail.then(() => this.#append(chunk, dropped)).catch(() => undefined);
  }

  /**
   * Gives what the log holds now, and calls back with everything written after that: no byte twice, none left out.
   * `onEnd` is called when the log is closed, or has been.
   */
  async follow(
    onChunk: (chunk: Buffer) => void,
    onEnd: () => void,
  ): Promise<{ kept: Buffer; stop: () => void }> {
    let held: Buffer[] | undefined = [];
    let ended = this.#isClosed;
    const take = (chunk: Buffer): void => {
      if (held) held.push(chunk);
      else onChunk(chunk);
    };
    const end = (): void => {
      ended = true;
      if (!held) onEnd();
    };
    this.#events.on('chunk', take);
    this.#events.once('end', end);
    // Appends are queued in order, so this reads exactly what was written before the listener was there.
    const reading = this.#tail.then(() => readLog(this.path));
    this.#tail = reading.then(
      () => undefined,
      () => undefined,
    );
    const stop = (): void => {
      this.#events.off('chunk', take);
      this.#events.off('end', end);
    };
    try {
      const kept = (await reading) ?? Buffer.alloc(0);
      // The caller gets what is kept first.
      setImmediate(() => {
        for (const chunk of held ?? []) onChunk(chunk);
        held = undefined;
        if (ended) onEnd();
      });
      return { kept, stop };
    } catch (error) {
      stop();
      throw error;
    }
  }

  /** Resolves once all that was written before is in the file. */
  async flush(): Promise<void> {
    await this.#tail;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#events.emit('end');
    await this.#tail;
    await this.#file?.close();
    this.#file = undefined;
  }

  async #append(chunk: Buffer, dropped: number): Promise<void> {
    this.#backlog -= chunk.length;
    if (!this.#file) {
      await mkdir(dirname(this.path), { recursive: true, mode: 0o700 });
      this.#file = await open(this.path, 'a', 0o600);
      this.#size = (await this.#file.stat()).size;
    }
    if (dropped > 0) {
      const notice = Buffer.from(`\n[releap: ${dropped} bytes dropped, printed faster than stored]\n`);
      await this.#file.write(notice);
      this.#size += notice.length;
    }
    await this.#file.write(chunk);
    this.#size += chunk.length;
    if (this.#size < this.#rotateAt) return;
    await this.#file.close();
    this.#file = undefined;
    await rename(this.path, `${this.path}.1`);
  }
}

/** Everything a log still holds, oldest first; undefined if nothing was ever logged under this path. */
export async function readLog(path: string): Promise<Buffer | undefined> {
  for (;;) {
    // Both are open before either is read: a rotation then moves neither away.
    await using newer = await openIfThere(path);
    await using older = await openIfThere(`${path}.1`);
    if (newer && !(await isStillAt(path, newer))) continue; // rotated meanwhile: `older` may be the same file, or a later one
    if (!newer && !older) return undefined;
    return Buffer.concat([
      (await older?.readFile()) ?? Buffer.alloc(0),
      (await newer?.readFile()) ?? Buffer.alloc(0),
    ]);
  }
}

async function openIfThere(path: string): Promise<FileHandle | undefined> {
  try {
    return await open(path, 'r');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

async function isStillAt(path: string, file: FileHandle): Promise<boolean> {
  const now = await stat(path).catch(() => undefined);
  const opened = await file.stat();
  return now !== undefined && now.ino === opened.ino && now.dev === opened.dev;
}
