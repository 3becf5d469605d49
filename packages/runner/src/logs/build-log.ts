import { BUILD_LOG_TAIL_CHARS } from '@releap/contract/runner';
import { LogFile } from './log-file.ts';

/** Most bytes of a build's log that are stored. */
const BUILD_LOG_MAX_BYTES = 16 * 1024 * 1024;

/** The log of one build: its beginning in a file, up to a bound, and its end in memory. */
export class BuildLog {
  readonly file: LogFile;
  #left: number;
  #end = Buffer.alloc(0);

  constructor(path: string, maxBytes = BUILD_LOG_MAX_BYTES) {
    this.file = new LogFile(path, Number.POSITIVE_INFINITY);
    this.#left = maxBytes;
  }

  write(chunk: Buffer): void {
    this.#end = Buffer.concat([this.#end, chunk]).subarray(-BUILD_LOG_TAIL_CHARS);
    if (this.#left === 0) return;
    const stored = chunk.subarray(0, this.#left);
    this.#left -= stored.length;
    this.file.write(stored);
    if (this.#left > 0) return;
    this.file.write(Buffer.from('\n[releap: the log is full; the rest of the output is not stored]\n'));
  }

  /** The last lines, in whole characters. */
  get tail(): string {
    const text = this.#end.toString('utf8').replace(/^\uFFFD+/, '');
    return text.slice(-BUILD_LOG_TAIL_CHARS);
  }

  async close(): Promise<void> {
    await this.file.close();
  }
}
