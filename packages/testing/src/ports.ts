import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:net';

/** Below the ports that the kernel chooses itself (ip_local_port_range): no other process gets one by chance. */
const FIRST_PORT = 12_000;
const PORTS = 20_000;
const TRIES = 100;
const given = new Set<number>();

/** A port that is free, and stays so until it is used: until then only another caller of this function takes it. */
export async function freePort(): Promise<number> {
  for (let tries = TRIES; ; tries -= 1) {
    const port = FIRST_PORT + randomInt(PORTS);
    if (given.has(port)) continue;
    given.add(port);
    const server = createServer().listen(port, '0.0.0.0');
    try {
      await once(server, 'listening');
    } catch (error) {
      if (tries > 0) continue;
      throw error;
    }
    server.close();
    await once(server, 'close');
    return port;
  }
}
