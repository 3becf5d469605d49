import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import {
  INTERCEPT_REPLY_MAX_BYTES,
  InterceptorToRunner,
  LineReader,
  type RunnerToInterceptor,
} from '@releap/contract/netd';

/** What may wait for it to be read, in bytes; an interceptor that reads nothing has hung. */
const WAITING_MAX = 128 * 1024 * 1024;
const REPLY_MS = 20_000;

type Request =
  | Omit<Extract<RunnerToInterceptor, { type: 'put' }>, 'seq'>
  | Omit<Extract<RunnerToInterceptor, { type: 'remove' }>, 'seq'>
  | { type: 'synced' | 'ping' };
type Event = Exclude<InterceptorToRunner, { type: 'done' }>;

/** One connection to the interceptor. What it says is checked, it is not trusted. */
export class InterceptorLink {
  /** Resolves with the reason when it is gone; never rejects. */
  readonly lost: Promise<string>;
  readonly #socket: Socket;
  readonly #waiting = new Map<number, NodeJS.Timeout>();
  #seq = 1;
  #why: string | undefined;

  private constructor(socket: Socket, onEvent: (event: Event, link: InterceptorLink) => void) {
    this.#socket = socket;
    const reader = new LineReader(InterceptorToRunner, INTERCEPT_REPLY_MAX_BYTES);
    const { promise, resolve } = Promise.withResolvers<string>();
    this.lost = promise;
    socket.on('error', (error) => this.end(error.message));
    socket.on('close', () => {
      for (const timer of this.#waiting.values()) clearTimeout(timer);
      this.#waiting.clear();
      resolve(this.#why ?? 'it closed the connection');
    });
    socket.on('data', (chunk) => {
      try {
        for (const message of reader.push(chunk)) {
          if (message.type === 'done') this.#onDone(message.seq);
          else onEvent(message, this);
        }
      } catch (error) {
        this.end(error instanceof Error ? error.message : String(error));
      }
    });
  }

  /** Rejects when no process listens there. */
  static async open(
    path: string,
    onEvent: (event: Event, link: InterceptorLink) => void,
  ): Promise<InterceptorLink> {
    const socket = connect(path);
    await once(socket, 'connect');
    return new InterceptorLink(socket, onEvent);
  }

  /** Sends what must be answered; without an answer in time the connection ends. */
  request(request: Request): void {
    if (this.#why !== undefined) return;
    const seq = this.#seq++;
    const late = (): void => this.end(`no answer to ${request.type} within ${REPLY_MS} ms`);
    this.#waiting.set(seq, setTimeout(late, REPLY_MS).unref());
    this.send({ ...request, seq });
  }

  send(message: RunnerToInterceptor): void {
    if (this.#why !== undefined) return;
    this.#socket.write(`${JSON.stringify(message)}\n`);
    if (this.#socket.writableLength > WAITING_MAX) this.end('it does not read');
  }

  end(why: string): void {
    this.#why ??= why;
    this.#socket.destroy();
  }

  #onDone(seq: number): void {
    const timer = this.#waiting.get(seq);
    if (timer === undefined) return this.end('it answered what was not asked');
    this.#waiting.delete(seq);
    clearTimeout(timer);
  }
}
