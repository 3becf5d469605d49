import type { Socket } from 'node:net';

/** @throws when it is not open in time; the socket is destroyed then */
export function opened<S extends Socket>(
  socket: S,
  event: 'connect' | 'secureConnect',
  ms: number,
): Promise<S> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      socket.destroy(Object.assign(new Error(`no connection within ${ms} ms`), { name: 'TimeoutError' }));
    }, ms);
    socket.once('error', reject);
    socket.once('close', () => {
      clearTimeout(timer);
      reject(unreachable('the connection was closed before it was open'));
    });
    socket.once(event, () => {
      clearTimeout(timer);
      // Until its user listens.
      socket.on('error', () => undefined);
      socket.off('error', reject);
      resolve(socket);
    });
  });
}

export const unreachable = (message: string): Error =>
  Object.assign(new Error(message), { code: 'EHOSTUNREACH' });
