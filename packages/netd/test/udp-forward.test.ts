import assert from 'node:assert/strict';
import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';
import { test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import { PeerBudget, UdpForward } from '../src/forwards/udp-forward.ts';

test('the UDP peers of all ports of a sandbox have one budget, and the most recent one is served', async () => {
  await using stack = new AsyncDisposableStack();
  const open = async (): Promise<Socket> => {
    const socket = createSocket('udp4');
    stack.defer(() => void socket.close());
    socket.bind(0, '127.0.0.1');
    await once(socket, 'listening');
    return socket;
  };
  const guest = await open();
  guest.on('message', (message, from) => guest.send(message, from.port, from.address));
  const budget = new PeerBudget();
  for (let taken = 0; taken < 1023; taken++) assert.equal(budget.take(), true);
  const forwards = await Promise.all(
    [0, 1].map(async () => {
      const forward = await UdpForward.listen(
        { address: '127.0.0.1', port: guest.address().port },
        '127.0.0.1',
        0,
        budget,
      );
      stack.defer(() => forward.close());
      return forward;
    }),
  );
  const echoes = async (port: number, patienceMs?: number): Promise<boolean> => {
    const peer = await open();
    let heard = false;
    peer.on('message', () => {
      heard = true;
    });
    await eventually(
      'an echo',
      () => {
        peer.send('x', port, '127.0.0.1');
        return heard;
      },
      patienceMs,
    ).catch(() => undefined);
    return heard;
  };
  const [first, second] = forwards.map(({ port }) => port) as [number, number];
  assert.equal(await echoes(first), true);
  assert.equal(await echoes(first), true, 'it takes the place of the one before');
  assert.equal(await echoes(second, 300), false, 'none is left, and this port has none to give up');
});
