import { mkdir, open, rename, type FileHandle } from 'node:fs/promises';
import path from 'node:path';

const LINES_AT_ONCE = 100;
/** Bound on the buffer for a slow disk; lines beyond it are counted and dropped. */
const QUEUE_MAX_BYTES = 4 * 2 ** 20;

/**
 * A log file of bounded size: when it is full it replaces `<name>.1`, and a new one is started. Lines are written in
 * order, by one writer; a full disk loses lines and does not affect the service.
 */
export class RotatingFile {
  readonly #file: string;
  readonly #maxBytes: number;
  #handle: FileHandle | undefined;
  #size = 0;
  #queue: string[] = [];
  #queued = 0;
  #dropped = 0;
  #writing: Promise<void> | undefined;

  constructor(file: string, maxBytes: number) {
    this.#file = file;
    this.#maxBytes = maxBytes;
  }

  write(line: string): void {
    const bytes = Buffer.byteLength(line) + 1;
    if (this.#queued + bytes > QUEUE_MAX_BYTES) {
      this.#dropped += 1;
      return;
    }
    this.#queue.push(line);
    this.#queued += bytes;
    this.#writing ??= this.#drain().finally(() => (this.#writing = undefined));
  }

  async close(): Promise<void> {
    await this.#writing;
    await this.#handle?.close().catch(() => undefined);
    this.#handle = undefined;
  }

  async #drain(): Promise<void> {
    while (this.#queue.length > 0) {
      const lines = this.#queue;
      this.#queue = [];
      this.#queued = 0;
      if (this.#dropped > 0) {
        lines.push(
          JSON.stringify({
            level: 40,
            time: Date.now(),
            msg: `${this.#dropped} lines were lost: the disk is too slow`,
          }),
        );
        this.#dropped = 0;
      }
      // In chunks: rotation happens between two of them, so that no file grows far beyond its size.
      for (
        let piece = lines.splice(0, LINES_AT_ONCE);
        piece.length > 0;
        piece = lines.splice(0, LINES_AT_ONCE)
      ) {
        try {
          await this.#append(`${piece.join('\n')}\n`);
        } catch {
          // It cannot be logged; the terminal has the important lines.
          await this.#handle?.close().catch(() => undefined);
          this.#handle = undefined;
        }
      }
    }
  }

  async #append(text: string): Promise<void> {
    if (this.#handle !== undefined && this.#size >= this.#maxBytes) {
      await this.#handle.close();
      this.#handle = undefined;
      await rename(this.#file, `${this.#file}.1`);
    }
    if (this.#handle === undefined) {
      await mkdir(path.dirname(this.#file), { recursive: true, mode: 0o700 });
      this.#handle = await open(this.#file, 'a', 0o600);
      this.#size = (await this.#handle.stat()).size;
    }
    await this.#handle.appendFile(text);
    this.#size += Buffer.byteLength(text);
  }
}
