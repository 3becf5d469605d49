import { once } from 'node:events';
import { chmod, rm } from 'node:fs/promises';
import type { Server as HttpServer } from 'node:http';
import { createServer, type Server, type Socket } from 'node:net';
import { parseProxyHeader, type ProxyHeader } from './proxy-header.ts';

const HEADER_MS = 5_000;

/** A connection that the engine has made for a client. */
export interface EngineClient {
  address: string;
  /** The lane of its request refused to connect. The engine has taken the credential out of the headers. */
  refused: boolean;
  /** Of a refused request; null when it has none. */
  credential: string | null;
}

const clients = new WeakMap<object, EngineClient>();

/** Undefined for a connection that does not come from the engine. */
export const engineClientOf = (socket: object): EngineClient | undefined => clients.get(socket);

/** Accepts connections of the engine at a Unix socket in its jail, and passes them to an HTTP server. */
export async function listenForEngine(path: string, http: HttpServer, refused: boolean): Promise<Server> {
  const server = createServer((socket) => {
    socket.on('error', () => socket.destroy());
    readHeader(socket).then(
      ({ address, uniqueId }) => {
        clients.set(socket, {
          address,
          refused,
          credential: uniqueId === undefined || uniqueId === '' ? null : uniqueId,
        });
        http.emit('connection', socket);
        socket.resume();
      },
      () => socket.destroy(),
    );
  });
  await rm(path, { force: true });
  server.listen({ path });
  await once(server, 'listening');
  // Access is limited by its folder.
  await chmod(path, 0o666);
  return server;
}

async function readHeader(socket: Socket): Promise<ProxyHeader> {
  const timer = setTimeout(() => socket.destroy(new Error('no PROXY header in time')), HEADER_MS);
  let data = Buffer.alloc(0);
  try {
    for (;;) {
      const chunk = socket.read() as Buffer | null;
      if (chunk === null) {
        if (socket.destroyed || socket.readableEnded) throw new Error('closed before its PROXY header');
        await once(socket, 'readable');
        continue;
      }
      data = Buffer.concat([data, chunk]);
      const header = parseProxyHeader(data);
      if (header === undefined) continue;
      if (data.length > header.bytes) socket.unshift(data.subarray(header.bytes));
      return header;
    }
  } finally {
    clearTimeout(timer);
  }
}
