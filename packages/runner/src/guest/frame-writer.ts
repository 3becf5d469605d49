import type { Socket } from 'node:net';
import type { StreamSink } from './guest-stream.ts';

/** Data waits while the socket holds this much; control frames, few and small, do not. */
const SOCKET_BUFFER_BYTES = 1024 * 1024;

/** Sends frames to a guest over one connection, in order. Output can be held back while a request must be the last one sent. */
export class FrameWriter implements StreamSink {
  readonly #socket: Socket;
  /** Frames that are held back; undefined when frames are sent immediately. */
  #held: Buffer[] | undefined;
  #drained: PromiseWithResolvers<void> | undefined;
  #closed = false;

  constructor(socket: Socket) {
    this.#socket = socket;
    socket.on('drain', () => this.#wake());
  }

  /** Bytes that the guest has not read yet. */
  get waitingBytes(): number {
    return (this.#held ?? []).reduce((sum, { length }) => sum + length, this.#socket.writableLength);
  }

  send(frame: Buffer): void {
    if (this.#closed) return;
    if (this.#held === undefined) this.#socket.write(frame);
    else this.#held.push(frame);
  }

  writable(): Promise<void> | undefined {
    const takesMore = this.#held === undefined && this.#socket.writableLength < SOCKET_BUFFER_BYTES;
    if (this.#closed || takesMore) return undefined;
    this.#drained ??= Promise.withResolvers<void>();
    return this.#drained.promise;
  }

  /** Holds back all frames from now on. When a request is answered, the guest has read everything that was sent before it. */
  hold(): void {
    if (!this.#closed) this.#held ??= [];
  }

  /** Sends the frames of `first`, and then all that were held back. */
  release<T>(first: () => T): T {
    const held = this.#held ?? [];
    this.#held = undefined;
    try {
      return first();
    } finally {
      for (const frame of held) this.send(frame);
      this.#wake();
    }
  }

  /** Accepts no more frames. The owner closes the socket. */
  close(): void {
    this.#closed = true;
    this.#held = undefined;
    this.#wake();
  }

  /** Waiting writers check again. */
  #wake(): void {
    this.#drained?.resolve();
    this.#drained = undefined;
  }
}
