import { once } from 'node:events';
import type { Server, Socket } from 'node:net';
import type { NetdForward, NetdForwardState } from '@releap/contract/netd';
import type { Log } from '../log.ts';
import type { PortTarget } from './port-target.ts';
import { createTcpForward } from './tcp-forward.ts';
import { PeerBudget, UdpForward } from './udp-forward.ts';

interface Forward {
  port: number;
  /** Of its clients. Datagrams have none. */
  connections(): number;
  /** Frees the port; connections stay. */
  drain(): Promise<void>;
  /** Connections end, too. */
  close(): Promise<void>;
}

interface Published {
  address: string;
  wanted: readonly NetdForward[];
  open: Map<string, Forward>;
  /** Codes of ports that could not be opened. */
  failed: Map<string, string>;
  /** Of the UDP peers of all its ports. */
  peers: PeerBudget;
  /** Changes of one sandbox happen one after the other. */
  last: Promise<unknown>;
}

/** A port that is taken now may be free again soon. */
const RETRY_MS = 1_000;

/** The declared ports of all sandboxes, published at one address of the host. */
export class PortForwarder {
  readonly #host: string;
  readonly #log: Log;
  readonly #published = new Map<string, Published>();
  readonly #retry: NodeJS.Timeout;

  constructor(host: string, log: Log) {
    this.#host = host;
    this.#log = log;
    this.#retry = setInterval(() => this.#retryFailed(), RETRY_MS).unref();
  }

  /**
   * Makes the published ports of a sandbox these. One that is open stays as it is. One that cannot be opened is tried
   * again until the sandbox wants it no more.
   */
  async set(vmId: string, address: string, wanted: readonly NetdForward[]): Promise<NetdForwardState[]> {
    const published = this.#published.get(vmId) ?? {
      address,
      wanted,
      open: new Map(),
      failed: new Map(),
      peers: new PeerBudget(),
      last: Promise.resolve(),
    };
    this.#published.set(vmId, published);
    const change = published.last.then(() => this.#change(published, address, wanted));
    published.last = change;
    return await change;
  }

  /** Closes the ports of a sandbox, with the connections that go through them. */
  async remove(vmId: string): Promise<void> {
    const published = this.#published.get(vmId);
    if (published === undefined) return;
    this.#published.delete(vmId);
    published.last = published.last.then(() => this.#change(published, published.address, []));
    await published.last;
  }

  get connections(): number {
    const open = [...this.#published.values()].flatMap((published) => [...published.open.values()]);
    return open.reduce((sum, forward) => sum + forward.connections(), 0);
  }

  /** Frees all ports. Their connections stay until `remove`. */
  async drain(): Promise<void> {
    clearInterval(this.#retry);
    await Promise.all(
      [...this.#published.values()].map(async (published) => {
        await published.last;
        await Promise.all([...published.open.values()].map((forward) => forward.drain()));
      }),
    );
  }

  async close(): Promise<void> {
    clearInterval(this.#retry);
    await Promise.all([...this.#published.keys()].map((vmId) => this.remove(vmId)));
  }

  async #change(
    published: Published,
    address: string,
    wanted: readonly NetdForward[],
  ): Promise<NetdForwardState[]> {
    const keys = new Set(wanted.map(keyOf));
    const stale = [...published.open].filter(([key]) => published.address !== address || !keys.has(key));
    for (const [key] of stale) published.open.delete(key);
    await Promise.all(stale.map(([, forward]) => forward.close()));
    published.address = address;
    published.wanted = wanted;
    published.failed.clear();
    for (const want of wanted) {
      const key = keyOf(want);
      if (published.open.has(key)) continue;
      try {
        const target = { address, port: want.vm_port };
        const open = want.proto === 'tcp' ? openTcp : openUdp;
        published.open.set(
          key,
          await open(target, this.#host, want.host_port ?? 0, published.peers, this.#log),
        );
      } catch (error) {
        published.failed.set(key, (error as NodeJS.ErrnoException).code ?? 'UNKNOWN');
      }
    }
    return wanted.map((want) => {
      const { proto, vm_port } = want;
      const port = published.open.get(keyOf(want))?.port;
      if (port !== undefined) return { proto, vm_port, host_port: port };
      return { proto, vm_port, error: published.failed.get(keyOf(want)) ?? 'UNKNOWN' };
    });
  }

  #retryFailed(): void {
    for (const [vmId, published] of this.#published) {
      if (published.failed.size === 0) continue;
      const failed = [...published.failed.keys()];
      published.last = published.last.then(async () => {
        // It was removed, or wants something else by now.
        if (this.#published.get(vmId) !== published) return;
        await this.#change(published, published.address, published.wanted);
        for (const key of failed.filter((one) => published.open.has(one)))
          this.#log.info({ vm_id: vmId, port: key }, 'a port that was in use is published again');
      });
    }
  }
}

function keyOf({ proto, vm_port }: NetdForward): string {
  return `${proto}/${vm_port}`;
}

async function openTcp(
  target: PortTarget,
  host: string,
  port: number,
  _peers: PeerBudget,
  log: Log,
): Promise<Forward> {
  const server = createTcpForward(target);
  const sockets = new Set<Socket>();
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
  });
  server.listen({ host, port, exclusive: true });
  await once(server, 'listening');
  server.on('error', (error) =>
    log.error({ error: error.message, vm_port: target.port }, 'a port forwarder failed'),
  );
  const closed = new Promise<void>((resolve) => server.once('close', resolve));
  return {
    port: boundPort(server),
    connections: () => sockets.size,
    drain: () => {
      server.close();
      return Promise.resolve();
    },
    close: async () => {
      server.close();
      for (const socket of sockets) socket.destroy();
      await closed;
    },
  };
}

async function openUdp(target: PortTarget, host: string, port: number, peers: PeerBudget): Promise<Forward> {
  const forward = await UdpForward.listen(target, host, port, peers);
  let closed: Promise<void> | undefined;
  const close = (): Promise<void> => (closed ??= forward.close());
  return { port: forward.port, connections: () => 0, drain: close, close };
}

function boundPort(server: Server): number {
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('a TCP server without a port');
  return address.port;
}
