/** One request to a guest and the data that flows with it, with credit flow control in both directions. */
import { Readable, Writable } from 'node:stream';
import { Channel, FrameType, INITIAL_WINDOW_BYTES, encodeFrame, encodeWindow } from './frames.ts';
import { GuestError } from './guest-error.ts';

/** Consumed bytes are granted again in steps of this; the rest of the window stays open meanwhile. */
const GRANT_STEP_BYTES = INITIAL_WINDOW_BYTES / 4;
const CHUNK_BYTES = 32 * 1024;
const MAX_CREDIT_BYTES = 2 ** 31;

/** What a stream needs of its connection. */
export interface StreamSink {
  send(frame: Buffer): void;
  /** Resolves when the socket takes more data; rejects when it is gone. */
  writable(): Promise<void> | undefined;
}

/** Output of the guest, as a Readable that grants the guest more credit only as it is read. */
export class InboundChannel extends Readable {
  readonly #sink: StreamSink;
  readonly #stream: number;
  readonly #channel: number;
  #queue: Buffer[] = [];
  #wanted = false;
  #ended = false;
  #window = INITIAL_WINDOW_BYTES;
  #consumed = 0;

  constructor(sink: StreamSink, stream: number, channel: number) {
    super({ highWaterMark: CHUNK_BYTES });
    this.#sink = sink;
    this.#stream = stream;
    this.#channel = channel;
  }

  /** @throws GuestError `protocol` when the guest sends more than it may */
  accept(data: Buffer): void {
    if (this.#ended) throw new GuestError('protocol', 'the guest sent data after the end of a channel');
    if (data.length > this.#window)
      throw new GuestError('protocol', 'the guest sent more than its window allows');
    this.#window -= data.length;
    if (this.destroyed) {
      this.#count(data.length); // not read: drop it, or the guest's process would block
      return;
    }
    this.#queue.push(Buffer.from(data)); // a copy: the chunk it lies in may be far larger
    this.#drain();
  }

  finish(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#drain();
  }

  override _read(): void {
    this.#wanted = true;
    this.#drain();
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    const held = this.#queue.reduce((sum, data) => sum + data.length, 0);
    this.#queue = [];
    if (!this.#ended) this.#count(held);
    callback(error);
  }

  #drain(): void {
    while (this.#wanted && !this.destroyed) {
      const data = this.#queue.shift();
      if (data === undefined) {
        if (!this.#ended) return;
        this.#wanted = false;
        this.push(null);
        return;
      }
      this.#wanted = this.push(data);
      this.#count(data.length);
    }
  }

  #count(bytes: number): void {
    this.#consumed += bytes;
    if (this.#consumed < GRANT_STEP_BYTES || this.#ended) return;
    this.#window += this.#consumed;
    this.#sink.send(encodeWindow(this.#stream, this.#channel, this.#consumed));
    this.#consumed = 0;
  }
}

/** Input of the guest: writes wait for the guest's credit and for the socket. */
export class OutboundChannel extends Writable {
  readonly #sink: StreamSink;
  readonly #stream: number;
  #credit = INITIAL_WINDOW_BYTES;
  #resume: (() => void) | undefined;
  #closed = false;

  constructor(sink: StreamSink, stream: number) {
    super({ highWaterMark: CHUNK_BYTES });
    this.#sink = sink;
    this.#stream = stream;
  }

  /** @throws GuestError `protocol` on an impossible credit */
  grant(bytes: number): void {
    this.#credit += bytes;
    if (this.#credit > MAX_CREDIT_BYTES)
      throw new GuestError('protocol', 'the guest granted more than 2 GiB');
    this.#wake();
  }

  /** The guest has answered: whatever is still written goes nowhere, without an error (as to a closed `head`). */
  shut(): void {
    this.#closed = true;
    this.#wake();
  }

  #wake(): void {
    const resume = this.#resume;
    this.#resume = undefined;
    resume?.();
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, callback: (error?: Error | null) => void): void {
    const settle = (error?: Error): void => callback(error);
    this.#writeAll(chunk).then(() => settle(), settle);
  }

  override _final(callback: (error?: Error | null) => void): void {
    if (!this.#closed) this.#sink.send(encodeFrame(FrameType.end, this.#stream, Buffer.of(Channel.stdin)));
    callback();
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.shut();
    callback(error);
  }

  async #writeAll(chunk: Buffer): Promise<void> {
    for (let at = 0; at < chunk.length && !this.#closed; ) {
      if (this.#credit === 0) {
        // oxlint-disable-next-line promise/avoid-new -- waits for a callback from grant() or shut()
        await new Promise<void>((resolve) => {
          this.#resume = resolve;
        });
        continue;
      }
      const piece = chunk.subarray(at, at + Math.min(CHUNK_BYTES, this.#credit));
      this.#credit -= piece.length;
      at += piece.length;
      this.#sink.send(encodeFrame(FrameType.data, this.#stream, Buffer.of(Channel.stdin), piece));
      await this.#sink.writable();
    }
  }
}

/** Bookkeeping of one open stream; the connection routes frames to it. */
export interface GuestStream {
  readonly id: number;
  /** Settles with the RESULT, or rejects with the ERROR or the end of the connection. */
  readonly result: Promise<Record<string, unknown>>;
  readonly stdin: OutboundChannel;
  readonly stdout: InboundChannel;
  readonly stderr: InboundChannel;
  /** Give the request up; the guest ends what it started. */
  cancel(error: GuestError): void;
}
