import { createServer } from 'node:net';

/** Default port of the SSH gateway above that of the API. */
export const SSH_PORT_OFFSET = 4;
/** The same of connections that hosts open. */
export const REVERSE_PORT_OFFSET = 7;
/** The same of previews over plain HTTP. */
export const PREVIEW_PORT_OFFSET = 5;

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
 * The port itself, or a free one for 0.
 * @param what variable of the port, for the error
 * @param hostVariable names that of the address
 * @throws a readable error: the port is taken, or the address is not one of this machine
 */
export async function claimPort(
  host: string,
  port: number,
  what: string,
  hostVariable = 'RELEAP_HOST',
): Promise<number> {
  try {
    return await tryPort(host, port);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const problem = {
      EADDRNOTAVAIL: `${hostVariable}=${host}: this machine has no such address`,
      ENOTFOUND: `${hostVariable}=${host}: this machine has no such address`,
      EACCES: `${what}=${port}: this user may not listen there`,
      EADDRINUSE: `${what}=${port}: another program listens on ${host} port ${port}`,
    }[code ?? ''];
    throw problem === undefined ? error : new Error(problem, { cause: error });
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
