import type { ServerChannel } from 'ssh2';
import { ChannelWriter } from './channel-writer.ts';
import { connectInGuest, type Destination, type GuestConnection } from './guest-connection.ts';
import type { SessionContext } from './session.ts';

const OUTPUT_MAX_BYTES = 256 * 1024;

/** One forwarded connection (`-L`, `-D`, `-W`): accepted once it is connected, so that a refusal reaches the client. */
export class SshForward {
  readonly #context: SessionContext;
  readonly #onEnd: () => void;
  readonly #ended = new AbortController();
  #channel: ServerChannel | undefined;
  #writer: ChannelWriter | undefined;
  #connection: GuestConnection | undefined;
  #sides = 2;
  /** What the sandbox's side sends before the client's channel is open. */
  readonly #early: (() => void)[] = [];

  constructor(
    to: Destination,
    accept: () => ServerChannel | undefined,
    reject: () => void,
    context: SessionContext,
    onEnd: () => void,
  ) {
    this.#context = context;
    this.#onEnd = onEnd;
    context.closed.addEventListener('abort', this.#end);
    this.#open(to, accept).catch(() => {
      reject();
      this.#end();
    });
  }

  /** Bytes from the client that wait for the sandbox. */
  get inbound(): number {
    return this.#channel?.readableLength ?? 0;
  }

  async #open(to: Destination, accept: () => ServerChannel | undefined): Promise<void> {
    const { lease, limits } = this.#context;
    const granted = await lease();
    // Held until the end: while it is leased, a revocation ends the connection.
    this.#ended.signal.addEventListener('abort', () => granted[Symbol.dispose](), { once: true });
    const connection = await connectInGuest(
      granted,
      to,
      {
        onData: (data) => {
          this.#whenOpen(() => {
            this.#writer?.write('stdout', data);
            if ((this.#writer?.waiting ?? 0) > OUTPUT_MAX_BYTES) this.#connection?.pause();
          });
        },
        onDataEnd: () => this.#whenOpen(() => void this.#sent()),
        onDrain: () => this.#channel?.resume(),
        onClose: () => this.#whenOpen(() => void this.#closeAfterOutput()),
      },
      { startMs: limits.startMs, signal: this.#ended.signal },
    );
    this.#connection = connection;
    const channel = this.#ended.signal.aborted ? undefined : accept();
    if (channel === undefined) {
      connection.destroy();
      this.#end();
      return;
    }
    this.#channel = channel;
    this.#writer = new ChannelWriter(channel, this.#context.congestion, () => connection.resume());
    channel.on('error', () => undefined);
    channel.on('data', (chunk: Buffer) => {
      if (!connection.write(chunk)) channel.pause();
    });
    channel.on('end', () => {
      connection.end();
      this.#sideEnded();
    });
    // Also when the client closes it while what it sent is not read.
    channel.on('finish', this.#end);
    channel.on('close', this.#end);
    for (const action of this.#early.splice(0)) action();
  }

  #whenOpen(action: () => void): void {
    if (this.#channel === undefined) this.#early.push(action);
    else action();
  }

  /** The sandbox's side has sent everything. */
  async #sent(): Promise<void> {
    await this.#writer?.flushed();
    this.#channel?.eof();
    this.#sideEnded();
  }

  async #closeAfterOutput(): Promise<void> {
    await this.#writer?.flushed();
    this.#channel?.resume();
    this.#channel?.end();
    this.#end();
  }

  #sideEnded(): void {
    if (--this.#sides > 0) return;
    this.#channel?.end();
    this.#end();
  }

  readonly #end = (): void => {
    if (this.#ended.signal.aborted) return;
    this.#ended.abort();
    this.#context.closed.removeEventListener('abort', this.#end);
    this.#writer?.close();
    this.#connection?.destroy();
    this.#onEnd();
  };
}
