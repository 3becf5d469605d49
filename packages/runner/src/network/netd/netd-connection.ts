import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { LineReader, NETD_REPLY_MAX_BYTES, NetdToRunner, type RunnerToNetd } from '@releap/contract/netd';

/** What may wait for it to be read, in bytes; a netd that reads nothing has hung. */
const WAITING_MAX = 16 * 1024 * 1024;

/** The connection, or netd itself, is gone. */
export class NetdLostError extends Error {
  override name = 'NetdLostError';
}

type Request =
  | Omit<Extract<RunnerToNetd, { type: 'put' }>, 'seq'>
  | Omit<Extract<RunnerToNetd, { type: 'remove' }>, 'seq'>
  | Omit<Extract<RunnerToNetd, { type: 'denied' }>, 'seq'>
  | { type: 'synced' | 'forget_pins' | 'ping' };

/** What netd answers a request with. */
export type Done = Pick<Extract<NetdToRunner, { type: 'done' }>, 'forwards' | 'denied'>;

type Event = Exclude<NetdToRunner, { type: 'done' }>;

interface Waiting {
  resolve: (done: Done) => void;
  reject: (error: Error) => void;
  timer: NodeJS.Timeout;
}

/** One connection to netd: requests in order, each with a deadline. What netd says is checked, it is not trusted. */
export class NetdConnection {
  /** Resolves with the reason when it is gone; never rejects. */
  readonly lost: Promise<string>;
  readonly #socket: Socket;
  readonly #replyMs: number;
  readonly #waiting = new Map<number, Waiting>();
  #seq = 1;
  #why: string | undefined;

  private constructor(socket: Socket, replyMs: number, onEvent: (event: Event) => void) {
    this.#socket = socket;
    this.#replyMs = replyMs;
    const reader = new LineReader(NetdToRunner, NETD_REPLY_MAX_BYTES);
    const { promise, resolve } = Promise.withResolvers<string>();
    this.lost = promise;
    socket.on('error', (error) => this.end(error.message));
    socket.on('close', () => {
      this.#why ??= 'it closed the connection';
      for (const { reject, timer } of this.#waiting.values()) {
        clearTimeout(timer);
        reject(new NetdLostError(`netd is gone: ${this.#why}`));
      }
      this.#waiting.clear();
      resolve(this.#why);
    });
    socket.on('data', (chunk) => {
      try {
        for (const message of reader.push(chunk)) {
          if (message.type === 'done') this.#onDone(message.seq, message);
          else onEvent(message);
        }
      } catch (error) {
        this.end(error instanceof Error ? error.message : String(error));
      }
    });
  }

  /** Rejects when no process listens there. @param replyMs a request that takes longer ends the connection */
  static async open(path: string, replyMs: number, onEvent: (event: Event) => void): Promise<NetdConnection> {
    const socket = connect(path);
    await once(socket, 'connect');
    return new NetdConnection(socket, replyMs, onEvent);
  }

  /** Resolves when it is done. @throws NetdLostError when netd is gone before, or has hung */
  request(request: Request): Promise<Done> {
    if (this.#why !== undefined) return Promise.reject(new NetdLostError(`netd is gone: ${this.#why}`));
    const seq = this.#seq++;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => this.end(`no answer to ${request.type} within ${this.#replyMs} ms`),
        this.#replyMs,
      ).unref();
      this.#waiting.set(seq, { resolve, reject, timer });
      this.send({ ...request, seq });
    });
  }

  send(message: RunnerToNetd): void {
    this.#socket.write(`${JSON.stringify(message)}\n`);
    if (this.#socket.writableLength > WAITING_MAX) this.end('it does not read');
  }

  end(why: string): void {
    this.#why ??= why;
    this.#socket.destroy();
  }

  #onDone(seq: number, done: Done): void {
    const waiting = this.#waiting.get(seq);
    if (waiting === undefined) return this.end('it answered what was not asked');
    this.#waiting.delete(seq);
    clearTimeout(waiting.timer);
    waiting.resolve(done);
  }
}
