import { createSocket, type Socket as UdpSocket } from 'node:dgram';
import { createServer, type Server, type Socket } from 'node:net';
import { once } from 'node:events';
import type { Log } from '../log.ts';
import type { NameServer } from '@releap/contract/netd';
import { type DnsClient, Responder } from './responder.ts';
import { frame, FrameReader } from './tcp-frames.ts';

export interface DnsForwarderOptions {
  address: string;
  /** Port to listen at when it is free; else any, the same for UDP and TCP. */
  port?: number | undefined;
  servers: readonly NameServer[];
  /** Who asks, told by the source address, which the firewall vouches for. Undefined: not answered. */
  clientOf(address: string): DnsClient | undefined;
  log: Log;
}

const TCP_IDLE_MS = 10_000;
const MAX_TCP_CONNECTIONS = 512;
const MAX_TCP_PER_CLIENT = 8;
const BIND_TRIES = 10;

/** The name server of all sandboxes: one socket for UDP, one for TCP. */
export class DnsForwarder {
  readonly port: number;
  readonly #options: DnsForwarderOptions;
  readonly #responder: Responder;
  readonly #udp: UdpSocket;
  readonly #tcp: Server;
  readonly #connections = new Map<Socket, DnsClient>();

  private constructor(options: DnsForwarderOptions, udp: UdpSocket, tcp: Server) {
    this.#options = options;
    this.#responder = new Responder(options.servers, options.log);
    this.#udp = udp;
    this.#tcp = tcp;
    this.port = udp.address().port;
    udp.on('message', (message, peer) => void this.#onMessage(message, peer.address, peer.port));
    udp.on('error', (err) => options.log.error({ error: err.message }, 'DNS socket failed'));
    tcp.on('connection', (socket) => this.#onConnection(socket));
    tcp.on('error', (err) => options.log.error({ error: err.message }, 'DNS server failed'));
  }

  static async open(options: DnsForwarderOptions): Promise<DnsForwarder> {
    for (let attempt = 1; ; attempt += 1) {
      const udp = createSocket('udp4');
      const tcp = createServer();
      tcp.maxConnections = MAX_TCP_CONNECTIONS;
      try {
        udp.bind({ address: options.address, port: attempt === 1 ? (options.port ?? 0) : 0 });
        await once(udp, 'listening');
        tcp.listen({ host: options.address, port: udp.address().port });
        await once(tcp, 'listening');
        return new DnsForwarder(options, udp, tcp);
      } catch (error) {
        udp.close();
        const inUse = (error as NodeJS.ErrnoException).code === 'EADDRINUSE';
        if (!inUse || attempt === BIND_TRIES) throw error;
      }
    }
  }

  /** Addresses that a sandbox would be given for a name now. */
  addressesOf(name: string, client: DnsClient): Promise<readonly string[]> {
    return this.#responder.addressesOf(name, client);
  }

  /** Stops listening; connections are cut. */
  async close(): Promise<void> {
    for (const socket of this.#connections.keys()) socket.destroy();
    const closed = [once(this.#tcp, 'close'), once(this.#udp, 'close')];
    this.#tcp.close();
    this.#udp.close();
    await Promise.all(closed);
  }

  async #onMessage(message: Buffer, address: string, port: number): Promise<void> {
    const client = this.#options.clientOf(address);
    if (client === undefined) return;
    const answer = await this.#responder.respond(message, client);
    if (answer === undefined) return;
    try {
      // The sandbox may be gone by now; then the answer is dropped.
      this.#udp.send(answer, port, address, () => {});
    } catch {
      // The socket was closed while the question was under way.
    }
  }

  #onConnection(socket: Socket): void {
    const client = this.#options.clientOf(socket.remoteAddress ?? '');
    const held = [...this.#connections.values()].filter((other) => other === client).length;
    if (client === undefined || held >= MAX_TCP_PER_CLIENT) {
      socket.destroy();
      return;
    }
    this.#connections.set(socket, client);
    socket.setTimeout(TCP_IDLE_MS, () => socket.destroy());
    socket.on('error', () => socket.destroy());
    socket.on('close', () => this.#connections.delete(socket));
    void this.#serve(socket, client);
  }

  /** One question after the other: a client that asks faster than we answer is held back by TCP itself. */
  async #serve(socket: Socket, client: DnsClient): Promise<void> {
    const reader = new FrameReader();
    try {
      for await (const chunk of socket) {
        for (const message of reader.push(chunk as Buffer)) {
          const answer = await this.#responder.respond(message, client, 65_535);
          if (answer !== undefined && !socket.write(frame(answer))) await once(socket, 'drain');
        }
      }
    } catch {
      socket.destroy();
    }
  }
}
