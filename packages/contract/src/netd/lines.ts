/** Messages on a byte stream: one JSON document a line, each checked against a schema. */
import type { Static, TSchema } from 'typebox';
import { Compile } from 'typebox/compile';

/** The peer sent what is not in the protocol; the connection is to be closed. */
export class LineError extends Error {
  override name = 'LineError';
}

/** Cuts a stream into messages. Holds at most one unfinished line. */
export class LineReader<S extends TSchema> {
  readonly #maxBytes: number;
  readonly #check: (value: unknown) => boolean;
  #parts: Buffer[] = [];
  #held = 0;

  constructor(schema: S, maxBytes: number) {
    const compiled = Compile(schema);
    this.#check = (value) => compiled.Check(value);
    this.#maxBytes = maxBytes;
  }

  /** @throws LineError on a line that is too long, or no message */
  *push(chunk: Buffer): Generator<Static<S>> {
    let start = 0;
    for (let end = chunk.indexOf(10); end !== -1; end = chunk.indexOf(10, start)) {
      this.#hold(chunk.subarray(start, end));
      const line = Buffer.concat(this.#parts, this.#held);
      this.#parts = [];
      this.#held = 0;
      start = end + 1;
      yield this.#parse(line);
    }
    this.#hold(chunk.subarray(start));
  }

  #hold(part: Buffer): void {
    this.#held += part.length;
    if (this.#held > this.#maxBytes) throw new LineError(`a message of more than ${this.#maxBytes} bytes`);
    if (part.length > 0) this.#parts.push(part);
  }

  #parse(line: Buffer): Static<S> {
    let value: unknown;
    try {
      value = JSON.parse(line.toString('utf8'));
    } catch {
      throw new LineError('a message that is not JSON');
    }
    if (!this.#check(value)) throw new LineError('a message that is not in the protocol');
    return value as Static<S>;
  }
}
