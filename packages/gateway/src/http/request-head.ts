/** What of a request decides where it goes. */
import type { IncomingMessage } from 'node:http';
import { engineClientOf } from '../engine/engine-listener.ts';
import type { RequestHead } from '../targets/target.ts';

export const headOf = ({
  method = 'GET',
  url = '/',
  headers,
  rawHeaders,
  socket,
}: IncomingMessage): RequestHead => ({
  method,
  url,
  headers,
  hosts: rawHeaders.filter((text, index) => index % 2 === 0 && text.toLowerCase() === 'host').length,
  ...clientOf(socket),
});

function clientOf(socket: IncomingMessage['socket']): Pick<RequestHead, 'address' | 'credential'> {
  const client = engineClientOf(socket);
  if (client === undefined) return { address: socket.remoteAddress ?? '' };
  return { address: client.address, ...(client.refused && { credential: client.credential }) };
}
