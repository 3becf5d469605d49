/**
 * What the protocols between a runner and its helper processes have in common: one JSON document a line, checked against a
 * schema.
 */
import { Type, type Static, type TSchema } from 'typebox';
import { Compile } from 'typebox/compile';

export const Seq = Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER });
export const VmId = Type.String({ minLength: 1, maxLength: 128 });

/** From the runner, beside what it puts. */
export const Remove = Type.Object({ type: Type.Literal('remove'), seq: Seq, vm_id: VmId });
export const Synced = Type.Object({ type: Type.Literal('synced'), seq: Seq });
export const Ping = Type.Object({ type: Type.Literal('ping'), seq: Seq });
export const Stop = Type.Object({ type: Type.Literal('stop') });

/**
 * How long a helper process has to start. On a busy machine a start takes ten seconds: with a shorter deadline it would be killed and
 * started again for ever, and what waits for it would give up before it is there.
 */
export const HELPER_START_MS = 60_000;

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
