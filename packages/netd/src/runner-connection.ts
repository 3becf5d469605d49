import type { Socket } from 'node:net';
import { LineReader, type NetdLogMessage } from '@releap/contract/netd';
import type { Static, TSchema } from 'typebox';
import type { Log } from './log.ts';
import { runnerLog } from './runner-log.ts';

export interface RunnerConnectionOptions<S extends TSchema, Sent> {
  /** Of what the runner sends. */
  received: S;
  receivedMaxBytes: number;
  /** The first message to a runner. */
  hello: () => Sent;
  /** @param known what this runner has put so far; of use until it says that that was all */
  onMessage: (message: Static<S>, known: Set<string>) => void;
}

/**
 * The runner as a helper process sees it: there is one at a time, and none while it restarts. A new connection ends the one
 * before, and a message that is not in the protocol ends its own.
 */
export class RunnerConnection<S extends TSchema, Sent> {
  /** Lines are sent to the runner. */
  readonly log: Log = runnerLog(
    () => this.#socket?.writableLength ?? 0,
    (message) => this.send(message),
  );
  readonly #options: RunnerConnectionOptions<S, Sent>;
  #socket: Socket | undefined;
  /** Since when there is no runner, by `performance.now()`. */
  #aloneSince = performance.now();

  constructor(options: RunnerConnectionOptions<S, Sent>) {
    this.#options = options;
  }

  /** How long there has been no runner, in milliseconds. */
  get aloneMs(): number {
    return this.#socket === undefined ? performance.now() - this.#aloneSince : 0;
  }

  get isConnected(): boolean {
    return this.#socket !== undefined;
  }

  accept(socket: Socket): void {
    const { received, receivedMaxBytes, hello, onMessage } = this.#options;
    this.#socket?.destroy();
    this.#socket = socket;
    const reader = new LineReader(received, receivedMaxBytes);
    const known = new Set<string>();
    socket.on('error', () => socket.destroy());
    // Its socket may stay half-open: a runner that has ended says nothing more.
    socket.on('end', () => socket.destroy());
    socket.on('close', () => {
      if (this.#socket !== socket) return;
      this.#socket = undefined;
      this.#aloneSince = performance.now();
    });
    socket.on('data', (chunk) => {
      try {
        for (const message of reader.push(chunk)) if (this.#socket === socket) onMessage(message, known);
      } catch {
        socket.destroy();
      }
    });
    this.send(hello());
  }

  /** Dropped while there is no runner. */
  send(message: Sent | NetdLogMessage): void {
    this.#socket?.write(`${JSON.stringify(message)}\n`);
  }

  /**
   * Sends to the runner that is connected now what is done later, and nothing to one after it. A failure ends the connection:
   * the runner then repeats everything.
   */
  answer(work: Promise<Sent>): void {
    const socket = this.#socket;
    work.then(
      (message) => {
        if (this.#socket === socket) this.send(message);
      },
      () => socket?.destroy(),
    );
  }

  close(): void {
    this.#socket?.destroy();
  }
}
