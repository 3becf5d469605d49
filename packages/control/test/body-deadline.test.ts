import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { connect, type AddressInfo, type Socket } from 'node:net';
import { after, before, it } from 'node:test';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { watchBody } from '../src/platform/http/body-deadline.ts';

const LIMITS = { totalMs: 100, idleMs: 100 };

let server: Server;
/** The server's end of the last connection. */
let accepted: Socket;
/** Requests that were found to be late. */
let late = 0;
before(async () => {
  server = createServer((raw, response) => {
    const reply = {
      get sent() {
        late += 1;
        return true;
      },
    };
    accepted = raw.socket;
    const request = { raw, routeOptions: { config: {} } };
    watchBody(request as unknown as FastifyRequest, reply as unknown as FastifyReply, LIMITS);
    response.end('no');
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
});
after(() => server.close());

/** Sends a request whose body never ends, and waits for the answer. */
async function answered() {
  const socket = connect((server.address() as AddressInfo).port, '127.0.0.1');
  socket.on('error', () => undefined);
  socket.write('POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nx');
  await once(socket, 'data');
  return socket;
}

it('a connection that stays open after the answer is bounded, one that has closed is not watched', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const gone = await answered();
  // Its request is cut off, which is an error.
  const closed = new Promise((resolve) => accepted.once('close', resolve));
  gone.destroy();
  await closed;
  t.mock.timers.tick(3 * LIMITS.totalMs);
  assert.equal(late, 0);
  const open = await answered();
  const ended = once(open, 'close');
  t.mock.timers.tick(LIMITS.totalMs - 1);
  assert.equal(late, 0);
  t.mock.timers.tick(1);
  await ended;
  assert.equal(late, 1);
});
