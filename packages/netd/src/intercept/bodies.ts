/** Bodies of intercepted messages: replaced while they stream, with the right length. */
import { Transform } from 'node:stream';
import type { Readable } from 'node:stream';
import { type Matcher, Rewriter } from './rewriter.ts';
import type { Encoding } from './sandbox-secrets.ts';

/** Longest body of a known length that is held to learn its new length. */
export const REQUEST_HELD_BYTES = 1024 * 1024;
export const RESPONSE_HELD_BYTES = 256 * 1024;
/** What all messages together may hold. */
const HELD_MAX_BYTES = 96 * 1024 * 1024;

/** How values are written in a body of this type. */
export function encodingOf(contentType = ''): Encoding {
  const [type = ''] = contentType.toLowerCase().split(';');
  if (/^application\/(?:[\w.+-]+\+)?json\s*$/.test(type)) return 'json';
  return type.trim() === 'application/x-www-form-urlencoded' ? 'url' : 'raw';
}

export function isCompressed(contentEncoding: string | undefined): boolean {
  return contentEncoding !== undefined && !/^(?:|identity)$/i.test(contentEncoding.trim());
}

/** Undefined when it is no plain number. */
export function lengthOf(contentLength: string | undefined): number | undefined {
  return contentLength !== undefined && /^\d{1,15}$/.test(contentLength) ? Number(contentLength) : undefined;
}

/** Replaces in a stream of any length. */
export function rewriting(matcher: Matcher): Transform {
  const rewriter = new Rewriter(matcher);
  return new Transform({
    transform(chunk: Buffer, _encoding, done) {
      done(null, rewriter.push(chunk));
    },
    flush(done) {
      done(null, rewriter.end());
    },
  });
}

let heldBytes = 0;

/** Reserves memory for a body; undefined when all that there is is in use. */
export function reserve(bytes: number): Disposable | undefined {
  if (heldBytes + bytes > HELD_MAX_BYTES) return undefined;
  heldBytes += bytes;
  return { [Symbol.dispose]: () => void (heldBytes -= bytes) };
}

/** The whole of a body of known length. Rejects when it is cut off. */
export async function collect(body: Readable): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of body) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks);
}
