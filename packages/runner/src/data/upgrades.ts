/** Upgrades of HTTP connections on the data server: routed like any other request, so that hooks (authentication) see them. */
import { type IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';

export interface Upgrade {
  socket: Socket;
  /** What the client sent after its request. */
  head: Buffer;
}

const requested = new WeakMap<IncomingMessage, Upgrade>();
const routed = new WeakSet<object>();

/** Routes upgrade requests to the handlers of their paths. Repeating it changes nothing. */
export function routeUpgrades(app: FastifyInstance): void {
  if (routed.has(app.server)) return;
  routed.add(app.server);
  app.server.on('upgrade', (request: IncomingMessage, socket: Socket, head: Buffer): void => {
    socket.on('error', (error) => app.log.debug({ err: error }, 'a connection to be upgraded broke'));
    requested.set(request, { socket, head });
    const response = new ServerResponse(request);
    response.assignSocket(socket);
    response.once('finish', () => socket.destroySoon());
    app.routing(request, response);
  });
}

/** The upgrade to this protocol that a request asks for, if it does. */
export function upgradeOf(request: FastifyRequest, protocol: string): Upgrade | undefined {
  if (request.headers.upgrade?.toLowerCase() !== protocol) return undefined;
  return requested.get(request.raw);
}

/** The connection becomes the handler's; nothing else is sent on it. */
export function acceptUpgrade(reply: FastifyReply, { socket }: Upgrade): void {
  reply.hijack();
  reply.raw.detachSocket(socket);
}
