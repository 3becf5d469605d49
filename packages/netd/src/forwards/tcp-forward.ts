import { connect, createServer, type Server } from 'node:net';
import { splice } from '../splice.ts';
import type { PortTarget } from './port-target.ts';

const MAX_CONNECTIONS = 1024;
const CONNECT_MS = 10_000;
const KEEP_ALIVE_MS = 60_000;

/**
 * A TCP server that passes every connection on to `target`. Each direction ends by itself (half-open), a reset or
 * a refusal on one side becomes a reset on the other, and a slow reader slows its writer.
 */
export function createTcpForward(target: PortTarget): Server {
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true, noDelay: true }, (outer) => {
    const inner = connect({
      host: target.address,
      port: target.port,
      allowHalfOpen: true,
      noDelay: true,
    });
    const connecting = setTimeout(() => abort(), CONNECT_MS);
    const abort = () => {
      clearTimeout(connecting);
      for (const socket of [outer, inner]) if (!socket.destroyed) socket.resetAndDestroy();
    };
    for (const socket of [outer, inner]) {
      socket.setKeepAlive(true, KEEP_ALIVE_MS);
      socket.on('error', abort);
    }
    inner.once('connect', () => {
      clearTimeout(connecting);
      splice(outer, inner, abort);
    });
    // A client that gives up before the guest has answered.
    outer.once('close', () => {
      if (inner.connecting) abort();
    });
  });
  server.maxConnections = MAX_CONNECTIONS;
  return server;
}
