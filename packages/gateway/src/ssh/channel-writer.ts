import type { Duplex, Writable } from 'node:stream';
import type { ServerChannel } from 'ssh2';

/** Bytes of one SSH connection that wait to be sent. ssh2 itself writes to the socket without looking at them. */
export class Congestion {
  readonly #socket: Duplex;
  readonly #maxBytes: number;
  #clear: Promise<void> | undefined;

  constructor(socket: Duplex, maxBytes: number) {
    this.#socket = socket;
    this.#maxBytes = maxBytes;
  }

  /** Resolves when more may be written, or when the connection has ended. */
  async wait(): Promise<void> {
    const socket = this.#socket;
    if (socket.writableLength <= this.#maxBytes || socket.destroyed) return;
    this.#clear ??= new Promise<void>((resolve) => {
      const done = (): void => {
        socket.off('drain', done);
        socket.off('close', done);
        this.#clear = undefined;
        resolve();
      };
      socket.on('drain', done);
      socket.on('close', done);
    });
    await this.#clear;
  }
}

/** Fields in which ssh2 1.17 keeps the rest of a write that waits for the client's window. */
interface PendingWrite {
  _chunk?: unknown;
  _chunkcb?: unknown;
  _chunkErr?: unknown;
  _chunkcbErr?: unknown;
}

/**
 * Writes to a channel in order, one write at a time. ssh2 mixes up a write to standard output and one to standard error
 * that wait for the client's window together, and does not forget the rest of a write that has been sent.
 */
export class ChannelWriter {
  readonly #channel: ServerChannel;
  readonly #congestion: Congestion;
  readonly #onDrain: () => void;
  readonly #queue: [stream: Writable, chunk: Buffer][] = [];
  #waiting = 0;
  #running: Promise<void> | undefined;
  #release: (() => void) | undefined;
  #closed = false;

  /** @param onDrain called when all has been written */
  constructor(channel: ServerChannel, congestion: Congestion, onDrain: () => void = () => undefined) {
    this.#channel = channel;
    this.#congestion = congestion;
    this.#onDrain = onDrain;
  }

  /** Bytes that have not been written yet. */
  get waiting(): number {
    return this.#waiting;
  }

  write(to: 'stdout' | 'stderr', chunk: Buffer): void {
    if (this.#closed || chunk.length === 0) return;
    this.#queue.push([to === 'stdout' ? this.#channel : this.#channel.stderr, chunk]);
    this.#waiting += chunk.length;
    this.#running ??= this.#run();
  }

  /** Resolves when everything has been written, or the channel is closed. */
  async flushed(): Promise<void> {
    await this.#running;
  }

  /** The channel is closed: what waits is dropped. */
  close(): void {
    this.#closed = true;
    this.#queue.length = 0;
    this.#waiting = 0;
    this.#release?.();
  }

  async #run(): Promise<void> {
    for (;;) {
      const [stream, chunk] = this.#queue.shift() ?? [];
      if (stream === undefined || chunk === undefined) break;
      await this.#congestion.wait();
      if (this.#closed) break;
      await new Promise<void>((resolve) => {
        this.#release = resolve;
        stream.write(chunk, () => resolve());
      });
      this.#forgetWritten();
      this.#waiting = Math.max(0, this.#waiting - chunk.length);
    }
    this.#running = undefined;
    this.#onDrain();
  }

  #forgetWritten(): void {
    const channel = this.#channel as PendingWrite;
    channel._chunk = undefined;
    channel._chunkcb = undefined;
    channel._chunkErr = undefined;
    channel._chunkcbErr = undefined;
  }
}
