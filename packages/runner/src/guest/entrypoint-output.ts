/** Output of the image's entrypoint: the one stream that the guest opens by itself, and replays after a loss. */
import { Channel, INITIAL_WINDOW_BYTES, encodeWindow } from './frames.ts';
import { GuestError } from './guest-error.ts';
import { readInt } from './replies.ts';

export interface EntrypointOutput {
  stream: 'stdout' | 'stderr';
  /** Position of the first byte in all that the entrypoint wrote to this stream since the sandbox booted. */
  offset: number;
  data: Buffer;
}

/** Called in order. What it returns is awaited before the guest forgets the bytes: only then are they ours. */
export type EntrypointListener = (output: EntrypointOutput) => void | Promise<void>;

/**
 * Receives on one connection. Every piece is granted (and so acknowledged) as soon as the listener has dealt with
 * it; the guest keeps what was not. Without a listener at most the windows are held here, then the guest holds.
 */
export class EntrypointReceiver {
  readonly #stream: number;
  readonly #send: (frame: Buffer) => void;
  readonly #fail: (error: GuestError) => void;
  readonly #offset: Record<'stdout' | 'stderr', number>;
  readonly #window = { stdout: INITIAL_WINDOW_BYTES, stderr: INITIAL_WINDOW_BYTES };
  #waiting: EntrypointOutput[] = [];
  #listener: EntrypointListener | undefined;
  #busy = false;

  constructor(
    stream: number,
    opening: Record<string, unknown>,
    send: (frame: Buffer) => void,
    fail: (error: GuestError) => void,
  ) {
    this.#stream = stream;
    this.#send = send;
    this.#fail = fail;
    this.#offset = { stdout: readInt(opening, 'stdout_offset'), stderr: readInt(opening, 'stderr_offset') };
  }

  listen(listener: EntrypointListener | undefined): void {
    this.#listener = listener;
    this.#deliver();
  }

  /** @throws GuestError `protocol` */
  accept(channel: number, data: Buffer): void {
    const stream = channel === Channel.stdout ? 'stdout' : 'stderr';
    if (data.length > this.#window[stream])
      throw new GuestError('protocol', 'the guest sent more entrypoint output than its window allows');
    this.#window[stream] -= data.length;
    this.#waiting.push({ stream, offset: this.#offset[stream], data: Buffer.from(data) });
    this.#offset[stream] += data.length;
    this.#deliver();
  }

  #deliver(): void {
    if (this.#busy || this.#listener === undefined || this.#waiting.length === 0) return;
    this.#busy = true;
    this.#run().then(
      () => {
        this.#busy = false;
      },
      (error: unknown) => {
        // Not acknowledged, not lost: the guest replays it on the next connection.
        this.#fail(new GuestError('aborted', 'the listener for entrypoint output failed', { cause: error }));
      },
    );
  }

  async #run(): Promise<void> {
    while (this.#listener !== undefined) {
      const output = this.#waiting.shift();
      if (output === undefined) return;
      await this.#listener(output);
      this.#window[output.stream] += output.data.length;
      this.#send(encodeWindow(this.#stream, Channel[output.stream], output.data.length));
    }
  }
}
