import type { Socket } from 'node:net';
import type { StreamSink } from './guest-stream.ts';

/** Data waits while the socket holds this much; control frames, few and small, do not. */
const SOCKET_BUFFER_BYTES = 1024 * 1024;

/** What is said to a guest over one connection, in order; for a while to itself, where that must be. */
export class FrameWriter implements StreamSink {
  readonly #socket: Socket;
  /** What is not to be sent yet; undefined when everything is. */
  #held: Buffer[] | undefined;
  #drained: PromiseWithResolvers<void> | undefined;
  #closed = false;

  constructor(socket: Socket) {
    this.#socket = socket;
    socket.on('drain', () => this.#wake());
  }

  /** Bytes that the guest has not taken yet. */
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

  /** Sends nothing from now on. What was sent before a request has been read by the guest when that is answered. */
  hold(): void {
    if (!this.#closed) this.#held ??= [];
  }

  /** Sends what `first` sends, and then all that was held. */
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

  /** Takes nothing more. The socket is its owner's to end. */
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
