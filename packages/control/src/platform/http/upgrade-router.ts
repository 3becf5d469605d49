import { STATUS_CODES, type IncomingMessage, type Server } from 'node:http';
import type { Duplex } from 'node:stream';
import {
  ApiError,
  errorBody,
  internalError,
  notFound,
  REQUEST_ID_HEADER,
  requestIdSource,
} from '@releap/contract';
import type { Logger } from 'pino';

/**
 * Takes over a connection whose client asked for an upgrade.
 * @throws ApiError to refuse it; nothing may have been written to the socket
 */
export type UpgradeHandler = (request: IncomingMessage, socket: Duplex, head: Buffer) => void | Promise<void>;

const requestId = requestIdSource();

/** Routes WebSocket handshakes of one HTTP server by their path, as its routes do for requests. */
export class UpgradeRouter {
  readonly #handlers = new Map<string, UpgradeHandler>();

  readonly #log: Logger;

  constructor(log: Logger) {
    this.#log = log;
  }

  on(path: string, handler: UpgradeHandler): void {
    this.#handlers.set(path, handler);
  }

  attach(server: Server): void {
    const log = this.#log;
    server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
      socket.on('error', (error) => log.debug({ err: error }, 'an upgrading connection broke'));
      const path = (request.url ?? '').split('?', 1)[0] ?? '';
      const handler = this.#handlers.get(path);
      const run = async (): Promise<void> => {
        if (handler === undefined) throw notFound(`no such route: ${path.slice(0, 100)}`, 'route_not_found');
        await handler(request, socket, head);
      };
      run().catch((error: unknown) => {
        const refusal = error instanceof ApiError ? error : internalError(error);
        if (refusal.status === 500) log.error({ err: error, path }, 'an upgrade failed');
        refuse(socket, refusal, requestId(request.headers[REQUEST_ID_HEADER]));
      });
    });
  }
}

function refuse(socket: Duplex, refusal: ApiError, requestId: string): void {
  const { status } = refusal;
  const text = JSON.stringify(errorBody(refusal, requestId));
  // The HTTP server no longer watches this connection: a client that never closes its end would keep it for good.
  socket.once('finish', () => socket.destroy());
  socket.end(
    `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}\r\n${REQUEST_ID_HEADER}: ${requestId}\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(text)}\r\nConnection: close\r\n\r\n${text}`,
  );
}
