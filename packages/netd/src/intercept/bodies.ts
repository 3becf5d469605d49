/** Bodies of intercepted messages: replaced while they stream, with the right length. */
import { Transform } from 'node:stream';
import type { Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { codingOf, isCodingError, type Coding } from './codings.ts';
import { RefusedRequest } from './refused-request.ts';
import { type Matcher, Rewriter, rewrite } from './rewriter.ts';
import type { Encoding, SandboxSecrets } from './sandbox-secrets.ts';

/**
 * What is read ahead of a request body of known length: of a shorter one the new length is sent. A longer one with a placeholder
 * in this part is sent chunked.
 */
const REQUEST_HELD_BYTES = 1024 * 1024;
/** Longest response of known length that is held to learn its new length. */
export const RESPONSE_HELD_BYTES = 256 * 1024;
/** Longest content of a compressed body that is read ahead. */
const OPENED_MAX_BYTES = 8 * 1024 * 1024;
/** And at most so many times what was read of it: deflate does not reach more, and a small body holds little. */
const OPENED_RATIO = 1_032;
/** What all messages together may hold. */
const HELD_MAX_BYTES = 96 * 1024 * 1024;

/** How values are written in a body of this type. */
function encodingOf(contentType = ''): Encoding {
  const [type = ''] = contentType.toLowerCase().split(';');
  if (/^application\/(?:[\w.+-]+\+)?json\s*$/.test(type)) return 'json';
  return type.trim() === 'application/x-www-form-urlencoded' ? 'url' : 'raw';
}

/** Messages in such a body have a length before them, and may be compressed each: none may become longer. */
function isGrpc(contentType = ''): boolean {
  return /^application\/grpc/i.test(contentType);
}

/** Undefined when it is no plain number. */
export function lengthOf(contentLength: string | undefined): number | undefined {
  return contentLength !== undefined && /^\d{1,15}$/.test(contentLength) ? Number(contentLength) : undefined;
}

/** Replaces in a stream of any length. */
function rewriting(matcher: Matcher): Transform {
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

function reserveOrRefuse(bytes: number): Disposable {
  const held = reserve(bytes);
  if (held === undefined) throw new RefusedRequest(503, 'too many requests are being held');
  return held;
}

/** The whole of a body of known length. Rejects when it is cut off. */
export async function collect(body: Readable): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of body) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks);
}

/** A request body as it is sent on. */
export type OutgoingBody =
  | Buffer
  | { source: Readable; stages: readonly Transform[]; coding: string }
  | undefined;

/** Sends a body. Rejects with `RefusedRequest` when it is not of the coding that its head names. */
export async function sendBody(body: OutgoingBody, to: Writable): Promise<void> {
  if (body === undefined || Buffer.isBuffer(body)) return void to.end(body);
  try {
    await pipeline([body.source, ...body.stages, to]);
  } catch (error) {
    if (!isCodingError(error)) throw error;
    throw new RefusedRequest(400, `the body of the request is not ${body.coding}`);
  }
}

export interface RequestBody {
  /** Undefined: it has no body, or one whose end the transfer tells. */
  length: number | undefined;
  contentType: string | undefined;
  contentEncoding: string | undefined;
}

/**
 * The body with values in the place of placeholders.
 * @param hold keeps what is reserved until the request has been sent
 * @returns `length` is that of the body; absent when the transfer has to tell its end
 * @throws RefusedRequest
 */
export async function replaceInBody(
  source: Readable,
  { length, contentType, contentEncoding }: RequestBody,
  { secrets, host, hold }: { secrets: SandboxSecrets; host: string; hold: DisposableStack },
): Promise<{ body: OutgoingBody; length?: number }> {
  if (length === 0) return { body: undefined, length };
  let replaced = false;
  const matcher = secrets.matcher(host, encodingOf(contentType), () => void (replaced = true));
  const coding = isGrpc(contentType) ? 'unknown' : codingOf(contentEncoding);
  const asItIs = { source, stages: [], coding: '' };
  if (coding === 'unknown') return { body: asItIs, ...(length === undefined ? {} : { length }) };
  const stages =
    coding === 'plain' ? [rewriting(matcher)] : [coding.decoder(), rewriting(matcher), coding.encoder()];
  const stream = { source, stages, coding: coding === 'plain' ? '' : coding.name };
  if (length === undefined) return { body: stream };
  const ahead = Math.min(length, REQUEST_HELD_BYTES);
  hold.use(reserveOrRefuse(ahead));
  const isWhole = length <= REQUEST_HELD_BYTES;
  const read = isWhole ? await collect(source) : await readAhead(source, ahead);
  // As much of each long body, whatever the segments that it came in.
  const openedMax = coding === 'plain' ? 0 : Math.min(OPENED_MAX_BYTES, OPENED_RATIO * ahead);
  using _opened = reserveOrRefuse(openedMax);
  const content = await open(read.subarray(0, ahead), coding, openedMax);
  const filled = content === undefined ? undefined : rewrite(matcher, content);
  if (filled === undefined || !replaced) {
    if (isWhole) return { body: read, length };
    source.unshift(read);
    return { body: asItIs, length };
  }
  if (isWhole) {
    const body = coding === 'plain' ? filled : await coding.encode(filled);
    return { body, length: body.length };
  }
  source.unshift(read);
  return { body: stream };
}

/** The content of what was read of a body; undefined when it is not of its coding, or too long. */
async function open(read: Buffer, coding: Coding | 'plain', max: number): Promise<Buffer | undefined> {
  if (coding === 'plain') return read;
  return await coding.decode(read, max).catch(() => undefined);
}

/** At least so many bytes of a longer body; the rest stays in it. Rejects when it is cut off. */
async function readAhead(body: Readable, bytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let read = 0;
  while (read < bytes) {
    const chunk = body.read() as Buffer | null;
    if (chunk === null) {
      await readable(body);
      continue;
    }
    chunks.push(chunk);
    read += chunk.length;
  }
  return Buffer.concat(chunks);
}

function readable(body: Readable): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const cutOff = (): void => reject(new Error('the body was cut off'));
  const ends = ['end', 'close', 'error'] as const;
  if (body.destroyed || body.readableEnded) cutOff();
  body.once('readable', resolve);
  for (const event of ends) body.once(event, cutOff);
  return promise.finally(() => {
    body.off('readable', resolve);
    for (const event of ends) body.off(event, cutOff);
  });
}

/** How the body of a response is passed on without values. */
export interface ScrubbedBody {
  stages: Transform[];
  /** It is sent without its coding and its length. */
  isOpened: boolean;
}

/** @param response `isPartial`: a range of a compressed body cannot be opened */
export function scrubbing(
  response: { contentType: string | undefined; contentEncoding: string | undefined; isPartial: boolean },
  { secrets, host, sameLength }: { secrets: SandboxSecrets; host: string; sameLength: boolean },
): ScrubbedBody {
  const coding = codingOf(response.contentEncoding);
  const isClosed = coding === 'unknown' || (coding !== 'plain' && response.isPartial);
  if (isClosed || !secrets.scrubs(host)) return { stages: [], isOpened: false };
  const isOpened = coding !== 'plain';
  const keepsLength = isGrpc(response.contentType) || (sameLength && !isOpened);
  const scrubber = rewriting(secrets.scrubber(host, keepsLength));
  return { stages: isOpened ? [coding.decoder(), scrubber] : [scrubber], isOpened };
}
