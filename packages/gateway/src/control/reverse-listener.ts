/** Where hosts that accept no connections open them to this gateway. */
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { reverseAddress, type ReverseConnections } from '@releap/certificates/hosts';

/** A gateway has at most 10,000 clients; as many as the data server of a host. */
const CONNECTIONS_MAX = 20_000;

export interface ReverseListen {
  host: string;
  /** 0 for any free one. */
  port: number;
}

/** @returns ends it, with what is open */
export async function startReverseListener(
  { host, port }: ReverseListen,
  reverse: ReverseConnections,
): Promise<() => void> {
  const open = new Set<Socket>();
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    open.add(socket);
    socket.once('close', () => open.delete(socket));
    reverse.accept(socket);
  });
  server.maxConnections = CONNECTIONS_MAX;
  server.listen({ host, port });
  await once(server, 'listening');
  const { port: bound } = server.address() as AddressInfo;
  reverse.listensAt(reverseAddress(`tcp://${host.includes(':') ? `[${host}]` : host}:${bound}`, host));
  return () => {
    server.close();
    reverse.close();
    for (const socket of open) socket.destroy();
  };
}
