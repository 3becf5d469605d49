/**
 * `GET /vms/:id/ports/:port/stream` and `GET /vms/:id/services/toolbox/stream` with `Upgrade: releap-tcp`: the bytes of a connection to
 * a port of a guest, or to its toolbox daemon.
 */
import type { Socket } from 'node:net';
import {
  badRequest,
  type GuestService,
  PORT_STREAM_PROTOCOL,
  PORT_STREAM_VIA_HEADER,
  quote,
  sandboxNotFound,
  unavailable,
} from '@releap/contract';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { Budget } from '../budget/budget.ts';
import { acceptUpgrade, routeUpgrades, upgradeOf } from '../data/upgrades.ts';
import { connectService, type PortConnection, type PortHost } from './connect-port.ts';
import { join } from './join.ts';

export type { PortHost };

/** Connections to the ports of one sandbox, and of all: each costs two sockets and their buffers. */
const CONNECTIONS_MAX = { each: 8_192, all: 32_768 };
/** The same for the toolbox: each is a stream of the connection to the agent, which other requests need as well. */
const TOOLBOX_MAX = { each: 128, all: 32_768 };

/** @param find undefined for an unknown sandbox; throws an ApiError when it does not run */
export function registerPortStreams(
  app: FastifyInstance,
  find: (vmId: string) => PortHost | undefined,
): void {
  const clients = new Set<Socket>();
  const ports = { budget: new Budget(CONNECTIONS_MAX), max: CONNECTIONS_MAX, what: 'ports' };
  const toolboxes = { budget: new Budget(TOOLBOX_MAX), max: TOOLBOX_MAX, what: 'the toolbox' };
  const serve = async (
    request: FastifyRequest,
    reply: FastifyReply,
    id: string,
    service: GuestService,
  ): Promise<FastifyReply> => {
    const { budget, max, what } = service === 'toolbox' ? toolboxes : ports;
    const upgrade = upgradeOf(request, PORT_STREAM_PROTOCOL);
    if (upgrade === undefined) {
      reply.header('upgrade', PORT_STREAM_PROTOCOL).header('connection', 'Upgrade');
      return await reply.code(426).send({ error: `this path needs Upgrade: ${PORT_STREAM_PROTOCOL}` });
    }
    const host = find(id);
    if (host === undefined) throw sandboxNotFound(id);
    if (budget.take(id, 1) === 0)
      throw unavailable(
        `too many connections to ${what}: at most ${max.each} of a sandbox, and ${max.all} on this host`,
      );
    const end = (): void => budget.release(id, 1);
    const server = await connectService(host, service).catch((error: unknown) => {
      end();
      throw error;
    });
    const { socket, head } = upgrade;
    acceptUpgrade(reply, upgrade);
    if (socket.destroyed) {
      server.reset();
      end();
      return reply;
    }
    clients.add(socket);
    socket.once('close', () => clients.delete(socket));
    socket.setTimeout(0);
    socket.write(switched(server));
    if (head.length > 0) server.writable.write(head);
    join(socket, server, end);
    return reply;
  };
  app.get<{ Params: { id: string; port: string } }>('/vms/:id/ports/:port/stream', (request, reply) =>
    serve(request, reply, request.params.id, parsePort(request.params.port)),
  );
  app.get<{ Params: { id: string } }>('/vms/:id/services/toolbox/stream', (request, reply) =>
    serve(request, reply, request.params.id, 'toolbox'),
  );
  routeUpgrades(app);
  // The server waits for its connections before it runs hooks of `onClose`.
  app.addHook('preClose', async () => {
    for (const socket of clients) socket.destroy();
  });
}

const switched = ({ via }: PortConnection): string =>
  `HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: ${PORT_STREAM_PROTOCOL}\r\n${PORT_STREAM_VIA_HEADER}: ${via ?? 'agent'}\r\n\r\n`;

function parsePort(text: string): number {
  const port = /^[1-9][0-9]{0,4}$/.test(text) ? Number(text) : 0;
  if (port < 1 || port > 65_535)
    throw badRequest(`port ${quote(text)} is not allowed; it must be 1 to 65535`);
  return port;
}
