import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

const PAUSE_MS = 20;

/**
 * A client that never closes its end of a connection. Resolves when the server has given up the connection: it then
 * resets what is written to it.
 * @returns what the server sent
 */
export async function closedByServer(port: number, request: string): Promise<string> {
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
  let received = '';
  socket.on('data', (chunk: Buffer) => (received += chunk.toString('latin1')));
  socket.on('error', () => undefined);
  socket.write(request);
  await once(socket, 'end');
  while (!socket.destroyed) {
    socket.write('x');
    await sleep(PAUSE_MS);
  }
  return received;
}
