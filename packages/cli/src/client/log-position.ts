/** How much of a log was printed. Logs are bounded: when one is read again, its beginning may have been dropped. */

const HEAD_BYTES = 1024;
const TAIL_BYTES = 4096;

export class LogPosition {
  #bytes = 0;
  /** The first bytes of the log; they change when its beginning is dropped. */
  #head: Buffer = Buffer.alloc(0);
  /** The newest bytes that were printed. */
  #tail: Buffer = Buffer.alloc(0);

  get isStart(): boolean {
    return this.#tail.length === 0;
  }

  /** Takes the next bytes of the log. */
  advance(bytes: Uint8Array): void {
    if (this.#bytes === this.#head.length) this.#head = headOf(this.#head, bytes);
    this.#tail = Buffer.concat([this.#tail, bytes]).subarray(-TAIL_BYTES);
    this.#bytes += bytes.length;
  }

  /**
   * How many bytes of the log, read from its beginning, were printed. When its beginning has been dropped, that is up to
   * the first place that reads like the newest bytes; 0 when those have been dropped too.
   */
  async findIn(log: AsyncIterable<Uint8Array>): Promise<number> {
    let head: Buffer = Buffer.alloc(0);
    let window: Buffer = Buffer.alloc(0);
    let read = 0;
    let found: number | undefined;
    for await (const chunk of log) {
      head = headOf(head, chunk);
      window = Buffer.concat([window, chunk]);
      read += chunk.length;
      if (head.length >= this.#head.length && head.subarray(0, this.#head.length).equals(this.#head))
        return this.#bytes;
      if (found === undefined) {
        const at = window.indexOf(this.#tail);
        if (at >= 0) found = read - window.length + at + this.#tail.length;
        window = window.subarray(-this.#tail.length);
      }
      if (found !== undefined && head.length === HEAD_BYTES) break;
    }
    this.#head = head;
    this.#bytes = found ?? 0;
    return this.#bytes;
  }
}

function headOf(head: Buffer, next: Uint8Array): Buffer {
  return head.length < HEAD_BYTES ? Buffer.concat([head, next.subarray(0, HEAD_BYTES - head.length)]) : head;
}
