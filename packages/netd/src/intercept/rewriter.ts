/** Replacement in byte streams whose chunks may split what is replaced. */

/** What to replace at a place of the data. */
export interface Match {
  start: number;
  end: number;
  replacement: Buffer;
}

export interface Matcher {
  /** The first match at or after `from`; undefined if there is none. */
  next(data: Buffer, from: number): Match | undefined;
  /** Bytes at the end of the data, not before `from`, that may be the beginning of a match. */
  pending(data: Buffer, from: number): number;
}

/** Feeds one stream through a matcher. Holds back only what may still become a match. */
export class Rewriter {
  readonly #matcher: Matcher;
  #held: Buffer = Buffer.alloc(0);

  constructor(matcher: Matcher) {
    this.#matcher = matcher;
  }

  /** What can be passed on after this chunk. */
  push(chunk: Buffer): Buffer {
    const data = this.#held.length === 0 ? chunk : Buffer.concat([this.#held, chunk]);
    const out: Buffer[] = [];
    let at = 0;
    for (let match = this.#matcher.next(data, at); match; match = this.#matcher.next(data, at)) {
      out.push(data.subarray(at, match.start), match.replacement);
      at = match.end;
    }
    const keep = this.#matcher.pending(data, at);
    out.push(data.subarray(at, data.length - keep));
    // A copy: what is held must not keep a whole chunk alive.
    this.#held = Buffer.from(data.subarray(data.length - keep));
    return out.length === 1 ? (out[0] ?? this.#held) : Buffer.concat(out);
  }

  /** The rest, at the end of the stream. */
  end(): Buffer {
    const rest = this.#held;
    this.#held = Buffer.alloc(0);
    return rest;
  }
}

/** All of a buffer. */
export function rewrite(matcher: Matcher, data: Buffer): Buffer {
  const rewriter = new Rewriter(matcher);
  return Buffer.concat([rewriter.push(data), rewriter.end()]);
}
