/**
 * Reads the requests of an HTTP/1 connection as they pass, and tells when one is for another host than the first, or cannot be
 * followed. Only the lengths of bodies are looked at (RFC 9112 section 6). Bounded: a head is held, a body is not. Pure.
 */
import { HEAD_MAX_BYTES, readHttpHead } from './http-head.ts';

const CHUNK_LINE_MAX_BYTES = 1024;
const TRAILERS_MAX_BYTES = HEAD_MAX_BYTES;
const CHUNK_SIZE = /^([0-9a-f]{1,12})[ \t]*(?:;[^\r\n]*)?\r\n$/i;

type State =
  | { at: 'head' }
  /** `left` bytes of a body, or of a chunk with the line break after it. */
  | { at: 'body'; left: number; chunked: boolean }
  | { at: 'chunk size' }
  | { at: 'trailers'; seen: number }
  /** Another protocol. */
  | { at: 'opaque' };

export class HttpRequestGuard {
  readonly #host: string;
  #refused: string | undefined;
  #state: State = { at: 'head' };
  /** Of a head or of a line. */
  #held: Buffer = Buffer.alloc(0);

  /** @param host of the first request, which is the first that is pushed */
  constructor(host: string) {
    this.#host = host;
  }

  /** What may be passed on of what was pushed so far, or the host that it may not be for. */
  push(chunk: Buffer): { pass: Buffer[] } | { refuse: string | undefined } {
    const pass: Buffer[] = [];
    let rest = this.#held.length === 0 ? chunk : Buffer.concat([this.#held, chunk]);
    this.#held = Buffer.alloc(0);
    while (rest.length > 0) {
      const used = this.#take(rest);
      if (used === 'refuse') return { refuse: this.#refused };
      if (used === 0) {
        this.#held = rest;
        break;
      }
      pass.push(rest.subarray(0, used));
      rest = rest.subarray(used);
    }
    return { pass };
  }

  /** How many bytes belong to what is being read; 0 when more are needed. */
  #take(bytes: Buffer): number | 'refuse' {
    const state = this.#state;
    if (state.at === 'opaque') return bytes.length;
    if (state.at === 'head') return this.#head(bytes);
    if (state.at === 'body') {
      const used = Math.min(state.left, bytes.length);
      state.left -= used;
      if (state.left === 0) this.#state = state.chunked ? { at: 'chunk size' } : { at: 'head' };
      return used;
    }
    const end = bytes.indexOf(10);
    if (end === -1) return bytes.length > CHUNK_LINE_MAX_BYTES ? 'refuse' : 0;
    if (state.at === 'trailers') {
      state.seen += end + 1;
      if (state.seen > TRAILERS_MAX_BYTES || bytes[end - 1] !== 13) return 'refuse';
      if (end === 1) this.#state = { at: 'head' };
      return end + 1;
    }
    const size = CHUNK_SIZE.exec(bytes.toString('latin1', 0, end + 1))?.[1];
    if (size === undefined) return 'refuse';
    const length = Number.parseInt(size, 16);
    this.#state =
      length === 0 ? { at: 'trailers', seen: 0 } : { at: 'body', left: length + 2, chunked: true };
    return end + 1;
  }

  #head(bytes: Buffer): number | 'refuse' {
    // An empty line before a request is ignored (RFC 9112 section 2.2).
    if (bytes[0] === 13 || bytes[0] === 10) {
      if (bytes[0] === 10) return 1;
      return bytes.length < 2 ? 0 : bytes[1] === 10 ? 2 : 'refuse';
    }
    // Cheap, because a guest may send a head byte by byte.
    const isWhole = bytes.includes('\n\r\n') || bytes.includes('\n\n');
    if (!isWhole) return bytes.length > HEAD_MAX_BYTES ? 'refuse' : 0;
    const head = readHttpHead(bytes);
    if (head === 'more') return 0;
    if (head === 'other' || head === 'invalid') return 'refuse';
    if (head.host !== this.#host) {
      this.#refused = head.host;
      return 'refuse';
    }
    const { body } = head;
    if (body === 'opaque') this.#state = { at: 'opaque' };
    else if (body === 'chunked') this.#state = { at: 'chunk size' };
    else if (body > 0) this.#state = { at: 'body', left: body, chunked: false };
    return head.end;
  }
}
