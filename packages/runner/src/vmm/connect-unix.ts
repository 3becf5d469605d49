import { createConnection } from 'node:net';
import type { Socket } from 'node:net';
import { DEADLINES_MS } from './tuning.ts';

/**
 * Connects to a unix socket that its owner may not have created yet. Retries each millisecond, as every create waits for
 * this.
 */
export async function connectUnix(
  path: string,
  options: { deadlineMs?: number; alive?: () => boolean; signal?: AbortSignal } = {},
): Promise<Socket> {
  const deadlineMs = options.deadlineMs ?? DEADLINES_MS.qmpQuery;
  const deadline = performance.now() + deadlineMs;
  for (;;) {
    options.signal?.throwIfAborted();
    try {
      return await new Promise<Socket>((resolve, reject) => {
        const socket = createConnection({ path });
        socket.once('error', reject);
        socket.once('connect', () => {
          socket.off('error', reject);
          resolve(socket);
        });
      });
    } catch (error) {
      const code = (error as NodeJS.ErrnoException).code;
      if (code !== 'ENOENT' && code !== 'ECONNREFUSED' && code !== 'EAGAIN') throw error;
      if (options.alive !== undefined && !options.alive()) {
        throw new Error(`the process behind ${path} ended before it listened`, { cause: error });
      }
      if (performance.now() >= deadline) {
        throw new Error(`nothing listened on ${path} within ${deadlineMs} ms (${code})`, { cause: error });
      }
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }
}
