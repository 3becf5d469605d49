/** Accepts the connections of runners: checks the credential, and upgrades to a WebSocket. */
import type { Server } from 'node:http';
import type { Duplex } from 'node:stream';
import { bearerToken, RUNNER_LINK_PATH } from '@releap/contract';
import { LINK_MESSAGE_MAX_BYTES } from '@releap/contract/runner';
import type { Logger } from 'pino';
import type { RunnerCredentials } from '../credentials/runner-credentials.ts';
import { WebSocketServer, type WebSocket } from 'ws';

export interface LinkServerOptions {
  credentials: RunnerCredentials;
  /** @param runnerId the runner whose credential opened the connection */
  onLink: (socket: WebSocket, runnerId: string) => void;
  log: Logger;
}

export interface LinkServer {
  /** Accepts the links of runners on this server. */
  attach(server: Server): void;
  /** Accepts no more connections and resolves when the open ones have ended. */
  close(): Promise<void>;
}

export function createLinkServer({ credentials, onLink, log }: LinkServerOptions): LinkServer {
  const sockets = new WebSocketServer({
    noServer: true,
    maxPayload: LINK_MESSAGE_MAX_BYTES,
    perMessageDeflate: false,
  });
  const onUpgrade = (
    request: Parameters<typeof sockets.handleUpgrade>[0],
    socket: Duplex,
    head: Buffer,
  ): void => {
    socket.on('error', (error) => log.debug({ err: error }, 'an upgrading connection broke'));
    const path = (request.url ?? '').split('?', 1)[0];
    const token = bearerToken(request.headers.authorization);
    if (path !== RUNNER_LINK_PATH)
      return refuse(socket, '404 Not Found', `no such route: ${path?.slice(0, 100)}`);
    credentials.authenticate(token).then(
      (identity) => {
        if (identity === null)
          return refuse(socket, '401 Unauthorized', 'missing or invalid runner credential');
        sockets.handleUpgrade(request, socket, head, (upgraded) => onLink(upgraded, identity.runnerId));
      },
      (error: unknown) => {
        log.warn({ err: error }, 'the credential of a runner could not be checked');
        refuse(socket, '503 Service Unavailable', 'the credential cannot be checked now: try again');
      },
    );
  };
  const attached = new Set<Server>();
  return {
    attach(server) {
      attached.add(server);
      server.on('upgrade', onUpgrade);
    },
    async close() {
      for (const server of attached) server.off('upgrade', onUpgrade);
      await new Promise<void>((resolve) => sockets.close(() => resolve()));
    },
  };
}

function refuse(socket: Duplex, status: string, error: string): void {
  const body = JSON.stringify({ error });
  socket.end(
    `HTTP/1.1 ${status}\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  );
}
