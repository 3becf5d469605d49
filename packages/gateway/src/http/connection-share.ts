/** Shares the connections of a gateway among the addresses that it is reached from. */
import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import { FairShare } from '@releap/contract';
import { engineClientOf } from '../engine/engine-listener.ts';
import { subjectOf } from './event-counter.ts';
import { TrustedProxies } from './trusted-proxies.ts';

/**
 * No address can hold all connections: it may have as many as are free. A further one is closed at once. Those of trusted
 * proxies, and of this machine, are not counted by address: they are of many clients.
 */
export function shareConnections(server: Server, connections: number, proxies = new TrustedProxies()): void {
  server.maxConnections = connections;
  const places = new FairShare<string>(connections);
  server.on('connection', (socket: Socket) => {
    const address = engineClientOf(socket)?.address ?? socket.remoteAddress;
    if (address === undefined || proxies.has(address)) return;
    const network = subjectOf(address);
    if (!places.mayTake(network)) {
      socket.destroy();
      return;
    }
    places.take(network);
    socket.once('close', () => places.release(network));
  });
}
