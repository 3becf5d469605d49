import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type ListenOptions, type Server } from 'node:net';

/**
 * Below the ports that the kernel chooses itself (ip_local_port_range), and so is what a service puts 10,000 above its own: no other
 * process gets one by chance.
 */
const FIRST_PORT = 12_000;
const PORTS = 10_000;
/** Each is given with those after it: a service takes some of them for its other listeners. */
const STEP = 8;
const TRIES = 100;

/** A port that is free, and stays so: no other caller of this function, in any process, gets it before this process has ended. */
export async function freePort(): Promise<number> {
  for (let tries = TRIES; ; tries -= 1) {
    const port = FIRST_PORT + STEP * randomInt(PORTS / STEP);
    try {
      // An abstract name, which the kernel frees with the process (unix(7)).
      (await listening({ path: `\0releap-test-port-${port}` })).unref();
      const server = await listening({ port, host: '0.0.0.0' });
      server.close();
      await once(server, 'close');
      return port;
    } catch (error) {
      if (tries === 0) throw error;
    }
  }
}

async function listening(where: ListenOptions): Promise<Server> {
  const server = createServer().listen(where);
  await once(server, 'listening');
  return server;
}
