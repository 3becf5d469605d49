/**
 * The frame codec of the guest protocol (docs/guest-protocol.md), host side. The bytes come from a hostile guest:
 * nothing is believed before it is checked, and at most one frame is ever held.
 */
import { GuestError } from './guest-error.ts';

export const FrameType = {
  open: 1,
  data: 2,
  window: 3,
  end: 4,
  result: 5,
  error: 6,
  cancel: 7,
  ping: 8,
  pong: 9,
  hello: 10,
  part: 11,
  event: 12,
} as const;

export const Channel = { stdin: 0, stdout: 1, stderr: 2 } as const;

const PROTOCOL_VERSION = 1;
export const FRAME_HEADER_BYTES = 9;
export const MAX_PAYLOAD_BYTES = 65_536;
/** Bytes of one channel that may be under way before the receiver has granted more. */
export const INITIAL_WINDOW_BYTES = 262_144;
/** One JSON message, however many PART frames it came in. */
export const MAX_MESSAGE_BYTES = 4 * 1024 * 1024;
const MAX_HELLO_BYTES = 4_096;

/** Precedes every HELLO; its first byte does not occur in it again. */
export const MAGIC = Buffer.from('\xf5releap-guest\x00\x01\xae', 'latin1');

export interface Frame {
  type: number;
  stream: number;
  payload: Buffer;
}

/** @param parts are concatenated into the payload, of at most MAX_PAYLOAD_BYTES */
export function encodeFrame(type: number, stream: number, ...parts: Uint8Array[]): Buffer {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  if (length > MAX_PAYLOAD_BYTES)
    throw new RangeError(`frame payload of ${length} bytes exceeds ${MAX_PAYLOAD_BYTES}`);
  const out = Buffer.allocUnsafe(FRAME_HEADER_BYTES + length);
  out.writeUInt32BE(length, 0);
  out.writeUInt8(type, 4);
  out.writeUInt32BE(stream, 5);
  let at = FRAME_HEADER_BYTES;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

/** A JSON message as OPEN, RESULT, … with as many PART frames before it as it needs. */
export function encodeMessage(type: number, stream: number, body: unknown): Buffer {
  const bytes = Buffer.from(JSON.stringify(body));
  if (bytes.length > MAX_MESSAGE_BYTES) {
    throw new GuestError('too_large', `a request of ${bytes.length} bytes exceeds ${MAX_MESSAGE_BYTES}`);
  }
  if (bytes.length <= MAX_PAYLOAD_BYTES) return encodeFrame(type, stream, bytes);
  const frames: Buffer[] = [];
  let at = 0;
  for (; bytes.length - at > MAX_PAYLOAD_BYTES; at += MAX_PAYLOAD_BYTES) {
    frames.push(encodeFrame(FrameType.part, stream, bytes.subarray(at, at + MAX_PAYLOAD_BYTES)));
  }
  frames.push(encodeFrame(type, stream, bytes.subarray(at)));
  return Buffer.concat(frames);
}

export function encodeWindow(stream: number, channel: number, bytes: number): Buffer {
  const payload = Buffer.allocUnsafe(5);
  payload.writeUInt8(channel, 0);
  payload.writeUInt32BE(bytes, 1);
  return encodeFrame(FrameType.window, stream, payload);
}

/** What a host says first. The nonce finds the answer among what earlier connections left in the pipe. */
export function encodeHello(nonce: string): Buffer {
  const hello = Buffer.from(JSON.stringify({ protocol: PROTOCOL_VERSION, nonce }));
  return Buffer.concat([MAGIC, encodeFrame(FrameType.hello, 0, hello)]);
}

/**
 * Completes whatever half frame an earlier host may have left in the guest's input (at most one payload), and then
 * is no valid frame, so the guest looks for a HELLO from there.
 */
export function encodeResync(nonce: string): Buffer {
  return Buffer.concat([Buffer.alloc(MAX_PAYLOAD_BYTES + 2 * FRAME_HEADER_BYTES), encodeHello(nonce)]);
}

function violation(text: string): GuestError {
  return new GuestError('protocol', `the guest broke the protocol: ${text}`);
}

/**
 * Turns chunks into frames. Before the HELLO that carries `nonce` everything is discarded; after it every byte
 * counts. `next()` throws a GuestError `protocol`, after which the decoder is of no more use.
 */
export class FrameDecoder {
  nonce: string;
  #pending: Buffer = Buffer.alloc(0);
  #synced = false;

  constructor(nonce: string) {
    this.nonce = nonce;
  }

  get synced(): boolean {
    return this.#synced;
  }

  push(chunk: Buffer): void {
    this.#pending = this.#pending.length === 0 ? chunk : Buffer.concat([this.#pending, chunk]);
  }

  /** The next complete frame, whose payload is only valid until the next push; undefined when more is needed. */
  next(): Frame | undefined {
    return this.#synced ? this.#frame() : this.#hello();
  }

  #hello(): Frame | undefined {
    for (;;) {
      const at = this.#pending.indexOf(MAGIC);
      if (at < 0) {
        const keep = Math.min(this.#pending.length, MAGIC.length - 1);
        this.#pending = this.#pending.subarray(this.#pending.length - keep);
        return undefined;
      }
      const rest = this.#pending.subarray(at + MAGIC.length);
      if (rest.length < FRAME_HEADER_BYTES) return this.#keep(at);
      const length = rest.readUInt32BE(0);
      if (rest.readUInt8(4) === FrameType.hello && length <= MAX_HELLO_BYTES) {
        if (rest.length < FRAME_HEADER_BYTES + length) return this.#keep(at);
        const payload = rest.subarray(FRAME_HEADER_BYTES, FRAME_HEADER_BYTES + length);
        if (carriesNonce(payload, this.nonce)) {
          this.#pending = rest.subarray(FRAME_HEADER_BYTES + length);
          this.#synced = true;
          return { type: FrameType.hello, stream: 0, payload };
        }
      }
      this.#pending = rest; // a response to an earlier connection, or an accident: look further
    }
  }

  #keep(at: number): undefined {
    this.#pending = this.#pending.subarray(at);
    return undefined;
  }

  #frame(): Frame | undefined {
    const bytes = this.#pending;
    if (bytes.length < FRAME_HEADER_BYTES) return undefined;
    const length = bytes.readUInt32BE(0);
    const type = bytes.readUInt8(4);
    if (length > MAX_PAYLOAD_BYTES)
      throw violation(`a frame of ${length} bytes, at most ${MAX_PAYLOAD_BYTES} are allowed`);
    if (type < FrameType.open || type > FrameType.event) throw violation(`unknown frame type ${type}`);
    if (bytes.length < FRAME_HEADER_BYTES + length) return undefined;
    this.#pending = bytes.subarray(FRAME_HEADER_BYTES + length);
    return {
      type,
      stream: bytes.readUInt32BE(5),
      payload: bytes.subarray(FRAME_HEADER_BYTES, FRAME_HEADER_BYTES + length),
    };
  }
}

function carriesNonce(payload: Buffer, nonce: string): boolean {
  try {
    const value: unknown = JSON.parse(payload.toString('utf8'));
    return typeof value === 'object' && value !== null && 'nonce' in value && value.nonce === nonce;
  } catch {
    return false;
  }
}

/** JSON of a message; a GuestError `protocol` when it is none, or no object. */
export function decodeObject(payload: Buffer): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(payload.toString('utf8'));
  } catch {
    throw violation('a message that is not JSON');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw violation('a message that is no object');
  return value as Record<string, unknown>;
}
