/** A load balancer of TCP connections for tests: to servers that are ready, by turns. */
import { once } from 'node:events';
import { createServer, connect, type Server, type Socket } from 'node:net';

const PROBE_MS = 500;
const PROBE_DEADLINE_MS = 5_000;

export interface Backend {
  port: number;
  /** URL that answers 200 while it takes requests, and 503 while it drains. */
  probe: string;
}

/** Whether it takes requests. */
export async function isReady(probe: string): Promise<boolean> {
  const signal = AbortSignal.timeout(PROBE_DEADLINE_MS);
  return await fetch(probe, { headers: { connection: 'close' }, signal }).then(
    async (answer) => (await answer.text()) !== '' && answer.status === 200,
    () => false,
  );
}

export class Balancer implements AsyncDisposable {
  readonly port: number;
  /** Connections that a server refused, and that another one got. */
  ledElsewhere = 0;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #ready = new Set<Backend>();
  readonly #backends: readonly Backend[];
  readonly #timer: NodeJS.Timeout;
  #turn = 0;

  private constructor(port: number, backends: readonly Backend[], server: Server) {
    this.port = port;
    this.#backends = backends;
    this.#server = server;
    server.on('connection', (client) => void this.#lead(client));
    this.#timer = setInterval(() => void this.#probe(), PROBE_MS);
  }

  static async start(port: number, backends: readonly Backend[]): Promise<Balancer> {
    // Connections may be half-closed, as between their ends.
    const server = createServer({ allowHalfOpen: true }).listen(port, '127.0.0.1');
    await once(server, 'listening');
    return new Balancer(port, backends, server);
  }

  async #probe(): Promise<void> {
    await Promise.all(
      this.#backends.map(async (backend) => {
        if (await isReady(backend.probe)) this.#ready.add(backend);
        else this.#ready.delete(backend);
      }),
    );
  }

  async #lead(client: Socket): Promise<void> {
    this.#keep(client);
    this.#turn += 1;
    const byTurns = this.#backends.map((_, at) => this.#backends[(at + this.#turn) % this.#backends.length]);
    const inOrder = byTurns
      .filter((backend) => backend !== undefined)
      .toSorted((a, b) => Number(this.#ready.has(b)) - Number(this.#ready.has(a)));
    for (const [tries, { port }] of inOrder.entries()) {
      const server = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
      const isOpen = await once(server, 'connect').then(
        () => true,
        () => false,
      );
      if (!isOpen) continue;
      if (tries > 0) this.ledElsewhere += 1;
      this.#keep(server);
      for (const [from, to] of [
        [client, server],
        [server, client],
      ] as const) {
        from.pipe(to);
        from.on('close', () => to.destroy());
      }
      return;
    }
    client.destroy();
  }

  #keep(socket: Socket): void {
    this.#sockets.add(socket);
    socket.on('error', () => socket.destroy());
    socket.once('close', () => this.#sockets.delete(socket));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#timer);
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
    await once(this.#server, 'close');
  }
}
