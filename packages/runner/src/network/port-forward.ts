import { once } from 'node:events';
import type { Server, Socket } from 'node:net';
import type { PortMapping } from '@releap/contract';
import type { Logger } from 'pino';
import { createTcpForward } from './tcp-forward.ts';
import { PeerBudget, UdpForward } from './udp-forward.ts';

/** Where a forwarder delivers. A service that listens on the guest's loopback alone is not reached. */
export interface PortTarget {
  address: string;
  port: number;
}

/** A port as declared at create. */
export interface DeclaredPort {
  vm_port: number;
  proto: 'tcp' | 'udp';
}

interface Forward {
  mapping: PortMapping;
  close(): Promise<void>;
}

/** The declared ports of all sandboxes, published at one address of the host. */
export class PortForwarder {
  readonly #host: string;
  readonly #log: Logger;
  readonly #forwards = new Map<string, Map<string, Forward>>();
  /** Of the UDP peers of a sandbox's ports. */
  readonly #peers = new WeakMap<Map<string, Forward>, PeerBudget>();

  constructor(host: string, log: Logger) {
    this.#host = host;
    this.#log = log;
  }

  /**
   * Publishes the ports of a sandbox and returns where. A port that is published already stays as it is. `previous`
   * is the mapping of an earlier run: its ports are taken again when nobody else has them by now.
   */
  async publish(
    vmId: string,
    address: string,
    ports: readonly DeclaredPort[],
    previous: readonly PortMapping[] = [],
  ): Promise<PortMapping[]> {
    const forwards = this.#forwards.get(vmId) ?? new Map<string, Forward>();
    this.#forwards.set(vmId, forwards);
    const peers = this.#peers.get(forwards) ?? new PeerBudget();
    this.#peers.set(forwards, peers);
    const mappings: PortMapping[] = [];
    for (const { vm_port, proto } of ports) {
      const key = `${proto}/${vm_port}`;
      let forward = forwards.get(key);
      if (forward === undefined) {
        const wish = previous.find((old) => old.vm_port === vm_port && old.proto === proto)?.host_port;
        forward = await this.#open({ address, port: vm_port }, proto, wish, peers);
        // Released while we were opening: then nobody would close it any more.
        if (this.#forwards.get(vmId) !== forwards) {
          await forward.close();
          throw new Error(`sandbox ${vmId} was released while its ports were being published`);
        }
        forwards.set(key, forward);
      }
      if (!mappings.includes(forward.mapping)) mappings.push(forward.mapping);
    }
    return mappings;
  }

  /** Closes the ports of a sandbox, with the connections that go through them. */
  async withdraw(vmId: string): Promise<void> {
    const forwards = this.#forwards.get(vmId);
    this.#forwards.delete(vmId);
    await Promise.all([...(forwards?.values() ?? [])].map((forward) => forward.close()));
  }

  async close(): Promise<void> {
    await Promise.all([...this.#forwards.keys()].map((vmId) => this.withdraw(vmId)));
  }

  async #open(
    target: PortTarget,
    proto: 'tcp' | 'udp',
    wish: number | undefined,
    peers: PeerBudget,
  ): Promise<Forward> {
    const open = proto === 'tcp' ? openTcp : openUdp;
    const more = { log: this.#log, peers };
    if (wish !== undefined) {
      try {
        return await open(target, this.#host, wish, more);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error;
        this.#log.warn(
          { host_port: wish, vm_port: target.port },
          'former host port is in use; taking another',
        );
      }
    }
    return await open(target, this.#host, 0, more);
  }
}

interface ForwardParts {
  log: Logger;
  peers: PeerBudget;
}

async function openTcp(
  target: PortTarget,
  host: string,
  port: number,
  { log }: ForwardParts,
): Promise<Forward> {
  const server = createTcpForward(target);
  const sockets = new Set<Socket>();
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
  });
  server.listen({ host, port, exclusive: true });
  await once(server, 'listening');
  server.on('error', (err) => log.error({ err, vm_port: target.port }, 'a port forwarder failed'));
  return {
    mapping: { vm_port: target.port, proto: 'tcp', host_port: boundPort(server) },
    close: async () => {
      const closed = once(server, 'close');
      server.close();
      for (const socket of sockets) socket.destroy();
      await closed;
    },
  };
}

async function openUdp(
  target: PortTarget,
  host: string,
  port: number,
  { peers }: ForwardParts,
): Promise<Forward> {
  const forward = await UdpForward.listen(target, host, port, peers);
  return {
    mapping: { vm_port: target.port, proto: 'udp', host_port: forward.port },
    close: () => forward.close(),
  };
}

function boundPort(server: Server): number {
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('a TCP server without a port');
  return address.port;
}
