import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { LineReader } from '@releap/contract/netd';
import type { Static, TSchema } from 'typebox';

interface Message {
  type: string;
}

/** How the runner and a helper process (netd, the interceptor) talk to each other: one JSON message a line. */
export interface HelperProtocol<Sent extends Message, S extends TSchema> {
  /** In errors and log lines. */
  name: string;
  /** Version of the protocol, which the helper's first message repeats. */
  version: number;
  /** Of what the helper sends: `hello`, one `done` for each request, and events. */
  received: S;
  /** Longest message of the helper, in bytes. */
  receivedMaxBytes: number;
  /** What may wait for the helper to read it, in bytes; a helper that reads nothing has hung. */
  waitingMaxBytes: number;
  /** Of what the runner sends. Messages with a `seq` are requests. Never set. */
  readonly sent?: Sent;
}

type Received<S extends TSchema> = Extract<Static<S>, Message>;
type Request<Sent> = Sent extends { seq: number } ? Omit<Sent, 'seq'> : never;
export type HelperEvent<S extends TSchema> = Exclude<Received<S>, { type: 'done' }>;
export type HelperDone<S extends TSchema> = Extract<Received<S>, { type: 'done' }>;

/** The connection, or the helper itself, is gone. */
export class HelperLostError extends Error {
  override name = 'HelperLostError';
}

interface Waiting<S extends TSchema> {
  resolve: (done: HelperDone<S>) => void;
  reject: (error: Error) => void;
  timer: NodeJS.Timeout;
}

/** One connection to a helper: requests in order, each with a deadline. What the helper says is checked, it is not trusted. */
export class HelperConnection<Sent extends Message, S extends TSchema> {
  /** Resolves with the reason when it is gone; never rejects. */
  readonly lost: Promise<string>;
  readonly #protocol: HelperProtocol<Sent, S>;
  readonly #socket: Socket;
  readonly #replyMs: number;
  readonly #waiting = new Map<number, Waiting<S>>();
  #seq = 1;
  #why: string | undefined;

  private constructor(
    socket: Socket,
    protocol: HelperProtocol<Sent, S>,
    replyMs: number,
    onEvent: (event: HelperEvent<S>, from: HelperConnection<Sent, S>) => void,
  ) {
    this.#socket = socket;
    this.#protocol = protocol;
    this.#replyMs = replyMs;
    const reader = new LineReader(protocol.received, protocol.receivedMaxBytes);
    const { promise, resolve } = Promise.withResolvers<string>();
    this.lost = promise;
    socket.on('error', (error) => this.end(error.message));
    socket.on('close', () => {
      this.#why ??= 'it closed the connection';
      for (const { reject, timer } of this.#waiting.values()) {
        clearTimeout(timer);
        reject(this.#lostError());
      }
      this.#waiting.clear();
      resolve(this.#why);
    });
    socket.on('data', (chunk) => {
      try {
        for (const message of reader.push(chunk) as Iterable<Received<S>>) {
          if (message.type === 'done') this.#onDone(message as HelperDone<S>);
          else onEvent(message as HelperEvent<S>, this);
        }
      } catch (error) {
        this.end(error instanceof Error ? error.message : String(error));
      }
    });
  }

  /** Rejects when no process listens there. @param replyMs a request that takes longer ends the connection */
  static async open<Sent extends Message, S extends TSchema>(
    path: string,
    protocol: HelperProtocol<Sent, S>,
    replyMs: number,
    onEvent: (event: HelperEvent<S>, from: HelperConnection<Sent, S>) => void,
  ): Promise<HelperConnection<Sent, S>> {
    const socket = connect(path);
    await once(socket, 'connect');
    return new HelperConnection(socket, protocol, replyMs, onEvent);
  }

  /** Resolves when it is done. @throws HelperLostError when the helper is gone before, or has hung */
  request(request: Request<Sent>): Promise<HelperDone<S>> {
    if (this.#why !== undefined) return Promise.reject(this.#lostError());
    const seq = this.#seq++;
    const message = { ...request, seq } as unknown as Sent;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => this.end(`no answer to ${message.type} within ${this.#replyMs} ms`),
        this.#replyMs,
      ).unref();
      this.#waiting.set(seq, { resolve, reject, timer });
      this.send(message);
    });
  }

  /** As `request`, for which nothing waits: a helper that is gone is told everything when it is back. */
  tell(request: Request<Sent>): void {
    this.request(request).catch(() => undefined);
  }

  send(message: Sent): void {
    if (this.#why !== undefined) return;
    this.#socket.write(`${JSON.stringify(message)}\n`);
    if (this.#socket.writableLength > this.#protocol.waitingMaxBytes) this.end('it does not read');
  }

  end(why: string): void {
    this.#why ??= why;
    this.#socket.destroy();
  }

  #lostError(): HelperLostError {
    return new HelperLostError(`${this.#protocol.name} is gone: ${this.#why}`);
  }

  #onDone(done: HelperDone<S>): void {
    const { seq } = done as { seq: number };
    const waiting = this.#waiting.get(seq);
    if (waiting === undefined) return this.end('it answered what was not asked');
    this.#waiting.delete(seq);
    clearTimeout(waiting.timer);
    waiting.resolve(done);
  }
}
