import type { Socket } from 'node:net';

/**
 * @throws when it is not open in time; the socket is destroyed then. `ECONNREFUSED` also when the other side ends the connection before:
 * a runner does while it starts and while it stops. Nothing was sent.
 */
export function opened<S extends Socket>(
  socket: S,
  event: 'connect' | 'secureConnect',
  ms: number,
): Promise<S> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      socket.destroy(Object.assign(new Error(`no connection within ${ms} ms`), { name: 'TimeoutError' }));
    }, ms);
    const fail = (error: NodeJS.ErrnoException): void =>
      reject(error.code === 'ECONNRESET' ? refused(error) : error);
    socket.once('error', fail);
    socket.once('close', () => {
      clearTimeout(timer);
      reject(refused());
    });
    socket.once(event, () => {
      clearTimeout(timer);
      // Until its user listens.
      socket.on('error', () => undefined);
      socket.off('error', fail);
      resolve(socket);
    });
  });
}

const refused = (cause?: Error): Error =>
  Object.assign(new Error('the connection was closed before it was open', { cause }), {
    code: 'ECONNREFUSED',
  });

export const unreachable = (message: string): Error =>
  Object.assign(new Error(message), { code: 'EHOSTUNREACH' });
