import assert from 'node:assert/strict';
import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';
import { test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import { RateLimit } from '../src/budget/rate-limit.ts';
import { flowLimitsOf, MAX_FLOWS_PER_SANDBOX } from '../src/network/flow-limits.ts';
import { PeerBudget, UdpForward } from '../src/network/udp-forward.ts';

test('all sandboxes together leave a part of the connection table to the host', () => {
  for (const [table, slots] of [
    [262_144, 256],
    [65_536, 256],
    [2_000_000, 1019],
    [262_144, 8],
  ] as const) {
    const { perSandbox, all } = flowLimitsOf(table, slots);
    assert.ok(all < table);
    assert.ok(perSandbox <= MAX_FLOWS_PER_SANDBOX && perSandbox <= all, `${perSandbox} of ${all}`);
  }
});

test('a rate limit gives its burst at once and its rate from then on', () => {
  let now = 0;
  const limit = new RateLimit({ perSecond: 10, burst: 5 }, () => now);
  const taken = (): number => Array.from({ length: 100 }, () => limit.take()).filter(Boolean).length;
  assert.equal(taken(), 5);
  assert.equal(taken(), 0);
  now += 300;
  assert.equal(taken(), 3);
  now += 60_000;
  assert.equal(taken(), 5);
});

test('the UDP peers of all ports of a sandbox have one budget, and the last one heard of is served', async () => {
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
