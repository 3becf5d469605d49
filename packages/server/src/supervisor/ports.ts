import { createServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

/** Parts of an earlier run that was killed may hold their ports for a moment longer. */
const PATIENCE_MS = 10_000;
const RETRY_MS = 200;

export class PortTaken extends Error {}

async function tryPort(host: string, port: number): Promise<number> {
  const server = createServer();
  return await new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen({ host, port, exclusive: true }, () => {
      const address = server.address();
      server.close(() => {
        if (typeof address === 'object' && address !== null) resolve(address.port);
        else reject(new Error('a listening server has no port'));
      });
    });
  });
}

/**
 * The port itself, or a free one for 0; waits a while for one that is taken.
 * @param what names the variable, for the error
 * @throws PortTaken, or what the system says of an address that is not ours
 */
export async function claimPort(host: string, port: number, what: string): Promise<number> {
  for (const end = Date.now() + PATIENCE_MS; ; await sleep(RETRY_MS)) {
    try {
      return await tryPort(host, port);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'EADDRNOTAVAIL' || code === 'ENOTFOUND') {
        throw new Error(`RELEAP_HOST=${host}: this machine has no such address`, { cause: error });
      }
      if (code === 'EACCES')
        throw new Error(`${what}=${port}: this user may not listen there`, { cause: error });
      if (code !== 'EADDRINUSE') throw error;
      if (Date.now() > end)
        throw new PortTaken(`${what}=${port}: another program listens on ${host} port ${port}`);
    }
  }
}

/** `wanted` when it is free now, or any free port. */
export async function preferPort(host: string, wanted: number): Promise<number> {
  if (wanted <= 65_535) {
    try {
      return await tryPort(host, wanted);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error;
    }
  }
  return await tryPort(host, 0);
}
