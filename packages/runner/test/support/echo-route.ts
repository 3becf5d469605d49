import { text } from 'node:stream/consumers';
import { PORT_STREAM_PROTOCOL } from '@releap/contract';
import type { FastifyInstance } from 'fastify';
import { acceptUpgrade, upgradeOf } from '../../src/data/upgrades.ts';

/** `GET /vms/:id/echo`: a stream in both directions that answers with what it got, once the other side has ended its own. */
export function echoRoute(app: FastifyInstance): void {
  app.get('/vms/:id/echo', async (request, reply) => {
    const upgrade = upgradeOf(request, PORT_STREAM_PROTOCOL);
    if (upgrade === undefined) return reply.code(400).send();
    acceptUpgrade(reply, upgrade);
    upgrade.socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nupgrade: ${PORT_STREAM_PROTOCOL}\r\nconnection: Upgrade\r\n\r\n`,
    );
    upgrade.socket.end(await text(upgrade.socket.iterator({ destroyOnReturn: false })));
    return reply;
  });
}
