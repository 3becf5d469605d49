import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { get } from 'node:http';
import type { IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import Fastify from 'fastify';
import { eventually } from '@releap/testing/eventually';
import { Budget } from '../src/budget/budget.ts';
import { Semaphore } from '../src/budget/semaphore.ts';
import { registerLogs } from '../src/data/log-routes.ts';
import { LogFile } from '../src/logs/log-file.ts';
import { checkAvailable, InsufficientMemoryError } from '../src/memory/available-memory.ts';

test('a budget is shared, and no owner has all of it', () => {
  const budget = new Budget({ all: 100, each: 60 });
  assert.equal(budget.take('a', 80), 60);
  assert.equal(budget.take('a', 1), 0);
  assert.equal(budget.take('b', 80), 40);
  assert.equal(budget.take('c', 1), 0);
  budget.release('a', 60);
  assert.equal(budget.take('c', 80), 60);
  budget.release('b', 40);
  budget.release('c', 60);
  assert.equal(budget.take('b', 80), 60);
});

test('a semaphore lets so many work at a time, in order', async () => {
  const semaphore = new Semaphore(2);
  const order: number[] = [];
  let now = 0;
  let most = 0;
  await Promise.all(
    [1, 2, 3, 4, 5].map((n) =>
      semaphore.run(async () => {
        now += 1;
        most = Math.max(most, now);
        order.push(n);
        await new Promise((resolve) => setImmediate(resolve));
        now -= 1;
      }),
    ),
  );
  assert.deepEqual([order, most], [[1, 2, 3, 4, 5], 2]);
});

test('a copy is refused where it would leave the host without memory', () => {
  const gib = 2 ** 30;
  checkAvailable('a fork', gib, 2 * gib);
  assert.throws(() => checkAvailable('a fork', gib, gib), {
    name: InsufficientMemoryError.name,
    message: 'the host has not enough memory for a fork: 1024 MiB are available, 1280 MiB would have to be',
  });
});

test('readers that follow a log are bounded, and one that leaves frees its place for the next', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'releap-logs-'));
  const live = new LogFile(join(folder, 'vm', 'console.log'));
  const app = Fastify();
  registerLogs(app, { read: async () => Buffer.alloc(0), live: () => live });
  await app.listen({ host: '127.0.0.1', port: 0 });
  const { port } = app.server.address() as AddressInfo;
  const follow = async (vm: string): Promise<IncomingMessage> => {
    const [answer] = (await once(
      get(`http://127.0.0.1:${port}/vms/${vm}/logs/console?follow=1`),
      'response',
    )) as [IncomingMessage];
    return answer;
  };
  try {
    live.write(Buffer.from('a line\n'));
    const readers = await Promise.all(Array.from({ length: 16 }, () => follow('loud')));
    assert.deepEqual(new Set(readers.map(({ statusCode }) => statusCode)), new Set([200]));
    assert.equal((await follow('loud')).statusCode, 429);
    const other = await follow('neighbour');
    assert.equal(other.statusCode, 200);
    readers[0]?.destroy();
    await eventually('room', async () => {
      const answer = await follow('loud');
      if (answer.statusCode !== 200) answer.resume();
      return answer.statusCode === 200;
    });
  } finally {
    await live.close();
    app.server.closeAllConnections();
    await app.close();
    await rm(folder, { recursive: true, force: true });
  }
});
