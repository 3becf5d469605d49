/** How much of a log was read. Logs are bounded: when one is read again, its beginning may have been dropped. */

const HEAD_BYTES = 1024;
const TAIL_BYTES = 4096;

/** A single-byte encoding: a character a byte, so that bytes are compared and searched as strings. */
const BYTES = new TextDecoder('latin1');

export class LogPosition {
  #bytes = 0;
  /** The first bytes of the log; they change when its beginning is dropped. */
  #head = '';
  /** The newest bytes that were read. */
  #tail = '';

  get isStart(): boolean {
    return this.#tail === '';
  }

  /** Takes the next bytes of the log. */
  advance(bytes: Uint8Array): void {
    const text = BYTES.decode(bytes);
    if (this.#bytes === this.#head.length) this.#head = headOf(this.#head, text);
    this.#tail = (this.#tail + text).slice(-TAIL_BYTES);
    this.#bytes += bytes.length;
  }

  /**
   * How many bytes of the log, read from its beginning, are known. When its beginning has been dropped, that is up to
   * the first place that reads like the newest bytes; 0 when those have been dropped too.
   */
  async findIn(log: AsyncIterable<Uint8Array>): Promise<number> {
    let head = '';
    let window = '';
    let read = 0;
    let found: number | undefined;
    for await (const chunk of log) {
      const text = BYTES.decode(chunk);
      head = headOf(head, text);
      window += text;
      read += chunk.length;
      if (head.length >= this.#head.length && head.startsWith(this.#head)) return this.#bytes;
      if (found === undefined) {
        const at = window.indexOf(this.#tail);
        if (at >= 0) found = read - window.length + at + this.#tail.length;
        window = window.slice(-this.#tail.length);
      }
      if (found !== undefined && head.length === HEAD_BYTES) break;
    }
    this.#head = head;
    this.#bytes = found ?? 0;
    return this.#bytes;
  }
}

function headOf(head: string, next: string): string {
  return (head + next.slice(0, HEAD_BYTES)).slice(0, HEAD_BYTES);
}
