/** Connections to the handler of one instance, each for one request at a time. */
import type { Socket } from 'node:net';
import { callbackify } from 'node:util';
import { Client, type Dispatcher, Pool } from 'undici';

/** Shorter than servers keep an idle connection, which would close it while a request is on its way. */
export const KEEP_ALIVE_MS = 1_500;
/** Largest headers of a response, in bytes. */
const HEADERS_MAX = 64 * 1024;

/** The connection of one request. */
export interface HandlerConnection {
  /** Ends this half of it: the handler sees that its client is gone, and may still answer. */
  endRequests(): void;
  close(): void;
}

export interface HandlerRequest extends Dispatcher.DispatchOptions {
  /** Called before the request is sent. */
  onConnection: (connection: HandlerConnection) => void;
}

export class HandlerPool {
  readonly #pool: Pool;

  /** @param connect opens a connection to the handler */
  constructor(connect: () => Promise<Socket>) {
    const open = callbackify(connect);
    this.#pool = new Pool('http://function', {
      connections: null,
      pipelining: 1,
      keepAliveTimeout: KEEP_ALIVE_MS,
      keepAliveMaxTimeout: KEEP_ALIVE_MS,
      maxHeaderSize: HEADERS_MAX,
      // The time of the whole invocation is bounded instead.
      headersTimeout: 0,
      bodyTimeout: 0,
      factory: (origin, options) => new HandlerClient(origin, options, open),
    });
  }

  dispatch(request: HandlerRequest, handler: Dispatcher.DispatchHandler): void {
    this.#pool.dispatch(request, handler);
  }

  /** Resolves when all requests have ended; no further ones are sent. */
  close(): Promise<void> {
    return this.#pool.close();
  }

  destroy(): Promise<void> {
    return this.#pool.destroy();
  }
}

type Open = (done: (error: NodeJS.ErrnoException | null, socket: Socket) => void) => void;

/** One connection at a time, with at most one request. */
class HandlerClient extends Client {
  #socket: Socket | undefined;
  readonly #connection: HandlerConnection = {
    endRequests: () => void this.#socket?.end(),
    close: () => void this.#socket?.destroy(),
  };

  constructor(origin: URL, options: Client.Options, open: Open) {
    super(origin, {
      ...options,
      connect: (_options, callback) =>
        open((error, socket) => {
          if (error !== null) return callback(error, null);
          this.#socket = socket;
          callback(null, socket);
        }),
    });
  }

  override dispatch(options: Dispatcher.DispatchOptions, handler: Dispatcher.DispatchHandler): boolean {
    (options as HandlerRequest).onConnection(this.#connection);
    return super.dispatch(options, handler);
  }
}
