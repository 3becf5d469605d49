/** WebSockets that say nothing. */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';

const AT_ONCE = 25;

/** @throws when one is not accepted */
export async function openIdleSockets(
  url: string,
  headers: Record<string, string>,
  count: number,
): Promise<Disposable> {
  const { hostname, port } = new URL(url);
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  const request =
    `GET /ws HTTP/1.1\r\n${lines.join('')}Connection: Upgrade\r\nUpgrade: websocket\r\n` +
    'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n';
  const sockets: Socket[] = [];
  const open = async (): Promise<void> => {
    const socket = connect({ host: hostname, port: Number(port) });
    sockets.push(socket);
    socket.write(request);
    const [answer] = (await once(socket, 'data')) as [Buffer];
    if (!answer.toString('latin1').startsWith('HTTP/1.1 101 '))
      throw new Error(`refused: ${answer.toString()}`);
    socket.on('error', () => undefined);
  };
  const close = (): void => {
    for (const socket of sockets) socket.destroy();
  };
  try {
    while (sockets.length < count)
      await Promise.all(Array.from({ length: Math.min(AT_ONCE, count - sockets.length) }, open));
  } catch (error) {
    close();
    throw error;
  }
  return { [Symbol.dispose]: close };
}
