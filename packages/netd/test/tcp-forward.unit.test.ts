import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { it, mock } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { createTcpForward } from '../src/forwards/tcp-forward.ts';

async function listening(server: Server): Promise<number> {
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

it('a client that never reads the end of a response is disconnected like any idle one', async () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  const guest = createServer({ allowHalfOpen: true }, (socket) => socket.resume());
  const inner = once(guest, 'connection') as Promise<[Socket]>;
  const forward = createTcpForward({ address: '127.0.0.1', port: await listening(guest) });
  const outer = once(forward, 'connection') as Promise<[Socket]>;
  const client = connect({ port: await listening(forward), host: '127.0.0.1', allowHalfOpen: true });
  client.on('error', () => undefined);
  try {
    client.pause().end('question');
    const [[socket], [server]] = await Promise.all([outer, inner]);
    // All that the kernel buffers for the client, and a little more.
    while (socket.writableLength === 0) {
      server.write(Buffer.alloc(4 * 1024));
      for (let turns = 0; turns < 5; turns++) await turn();
    }
    server.end();
    await once(server, 'close');
    await pause(50);
    assert.equal(socket.destroyed, false);
    mock.timers.tick(2 * 3_600_000);
    assert.equal(socket.destroyed, true);
  } finally {
    mock.timers.reset();
    client.destroy();
    forward.close();
    guest.close();
  }
});

/** With a timer that is not mocked. */
async function pause(ms: number): Promise<void> {
  await new Promise<void>((resolve) => {
    const timer = setInterval(() => {
      clearInterval(timer);
      resolve();
    }, ms);
  });
}
