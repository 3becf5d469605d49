/** `GET /vms/:id/address`: the address of a sandbox, for the gateway's engine on the same machine, until the sandbox loses it. */
import { readlink } from 'node:fs/promises';
import type { ServerResponse } from 'node:http';
import { type SandboxAddress, sandboxNotFound, unavailable } from '@releap/contract';
import type { FastifyInstance } from 'fastify';
import type { PortHost } from './connect-port.ts';

/** A gateway opens one for each sandbox. */
const STREAMS_PER_SANDBOX_MAX = 16;

export class AddressStreams {
  readonly #open = new Map<string, Set<ServerResponse>>();
  readonly #clientUid: number | undefined;

  /** @param clientUid the user whose connections to sandboxes the firewall accepts */
  constructor(clientUid: number | undefined) {
    this.#clientUid = clientUid;
  }

  /** @param find undefined for an unknown sandbox; throws an ApiError when it does not run */
  register(app: FastifyInstance, find: (vmId: string) => PortHost | undefined): void {
    const network = readlink('/proc/self/ns/net');
    network.catch(() => undefined);
    app.get<{ Params: { id: string } }>('/vms/:id/address', async (request, reply) => {
      const { id } = request.params;
      const said = { network: await network, ...(this.#clientUid && { client_uid: this.#clientUid }) };
      const host = find(id);
      if (host === undefined) throw sandboxNotFound(id);
      const streams = this.#open.get(id) ?? new Set();
      if (streams.size >= STREAMS_PER_SANDBOX_MAX) throw unavailable('too many requests for this address');
      const line: SandboxAddress = { address: host.address, ...said };
      reply.hijack();
      const { raw } = reply;
      this.#open.set(id, streams.add(raw));
      raw.on('error', () => undefined);
      raw.once('close', () => {
        streams.delete(raw);
        if (streams.size === 0 && this.#open.get(id) === streams) this.#open.delete(id);
      });
      raw.writeHead(200, { 'content-type': 'application/x-ndjson', connection: 'close' });
      raw.write(`${JSON.stringify(line)}\n`);
      return reply;
    });
    app.addHook('preClose', async () => {
      for (const id of this.#open.keys()) this.end(id);
    });
  }

  /** The sandbox is about to lose its address. */
  end(vmId: string): void {
    for (const stream of this.#open.get(vmId) ?? []) stream.destroy();
  }
}
