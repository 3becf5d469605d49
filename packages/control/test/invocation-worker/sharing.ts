/** Workers that share a queue, and their leases. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Database } from '@releap/database';
import { until } from '@releap/testing/world';
import { pino } from 'pino';
import { createSender } from '../../src/functions/invocations/send.ts';
import { createWorker } from '../../src/functions/invocations/worker.ts';
import { PRICES } from '../support/billing.ts';
import { handled, refused } from '../support/scripted-gateway.ts';
import {
  assertEndedOnce,
  database,
  gateway,
  holdCalls,
  isDone,
  newCalled,
  rowsOf,
  spawnMany,
  startWorker,
} from '../support/invocation-workers.ts';

describe('workers that share a queue', () => {
  it('call each invocation once while none of them dies', async () => {
    const fn = await newCalled();
    gateway.answer = async (call) => {
      await sleep(Math.random() * 20);
      handled(call);
    };
    const ids = await spawnMany(fn, 400);
    // A lease that does not run out on a busy machine.
    await using _one = startWorker(60_000);
    await using _other = startWorker(60_000);
    const more = Array.from({ length: 20 }, () => spawnMany(fn, 5));
    for (const worker of [_one, _other]) worker.kick();
    ids.push(...(await Promise.all(more)).flat());
    const poll = setInterval(() => _one.kick(), 20);
    await until(isDone(ids)).finally(() => clearInterval(poll));
    await assertEndedOnce(fn, ids);
    assert.equal(gateway.calls.length, ids.length);
  });

  it('tell each other of new ones that they cannot run now', async () => {
    const fn = await newCalled();
    const held = holdCalls();
    let told = 0;
    await using worker = startWorker(60_000, () => (told += 1));
    const ids = await spawnMany(fn, 20);
    worker.kick(true);
    await until(() => held.length === 20);
    assert.equal(told, 0);
    // More than one server runs of a function.
    ids.push(...(await spawnMany(fn, 200)));
    worker.kick();
    await until(() => worker.inFlight > 20);
    assert.equal(told, 0, 'another server has stored them, and tells it');
    worker.kick(true);
    await until(() => told > 0);
    gateway.answer = (call) => handled(call);
    for (const call of held) handled(call);
    await until(isDone(ids));
  });

  it('renew what takes longer than a lease, and drop what another one owns', async () => {
    const fn = await newCalled();
    const held = holdCalls();
    const [id = ''] = await spawnMany(fn, 1);
    // Longer than a busy machine stops a process.
    await using _worker = startWorker(60_000);
    await until(() => held.length === 1);
    const leasedUntil = async (): Promise<number> => {
      const { rows } = await database.pool.query<{ lease_until: Date }>(
        'select lease_until from invocations where id = $1',
        [id],
      );
      return rows[0]?.lease_until.getTime() ?? 0;
    };
    const leased = await leasedUntil();
    await until(async () => (await leasedUntil()) > leased);
    assert.equal(held.length, 1);
    const [first] = held;
    assert.ok(first);
    const closed = once(first.response, 'close');
    // As another server does it.
    await database.pool.query('update invocations set attempt = attempt + 1 where id = $1', [id]);
    gateway.answer = (call) => handled(call);
    await closed;
    assert.equal(first.response.writableFinished, false, 'the call of the replaced attempt is cut off');
    // That server ends. Half of the patience of a test would go by until its lease does.
    await database.pool.query('update invocations set lease_until = now() where id = $1', [id]);
    await assertEndedOnce(fn, [id]);
  });
});

it('what is to be tried again is not kept by a renewal of its lease that was under way', async () => {
  const fn = await newCalled();
  const [answered, retried] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  gateway.answer = async (call) => {
    await answered.promise;
    refused(call, 502, 'the instance has ended');
  };
  /** Statements that renew leases, in order. */
  const renewals: Promise<unknown>[] = [];
  const run = database.pool.query.bind(database.pool) as (...of: unknown[]) => Promise<unknown>;
  const query = (...of: unknown[]): Promise<unknown> => {
    if ((of[0] as { name?: string }).name !== 'invocations-renew') return run(...of);
    // The first one comes last, if others do not wait for it.
    const isFirst = renewals.length === 0;
    const renewal = isFirst
      ? retried.promise.then(() => Promise.all(renewals.slice(1))).then(() => run(...of))
      : run(...of);
    renewals.push(renewal);
    return renewal;
  };
  await using disposables = new AsyncDisposableStack();
  const sender = createSender();
  disposables.defer(() => sender.close());
  await using worker = createWorker({
    database: { ...database, pool: { query } as unknown as Database['pool'] },
    prices: PRICES,
    send: sender.send,
    gatewayOf: () => Promise.resolve(gateway.url),
    tokenFor: () => Promise.resolve('token'),
    log: pino({}, { write: (line) => void (line.includes('is retried') && setImmediate(retried.resolve)) }),
    leaseMs: 3_600_000,
    retryMs: 10,
  });
  const [id = ''] = await spawnMany(fn, 1);
  worker.kick();
  await until(() => gateway.calls.length === 1);
  const renewed = worker.renewLeases();
  answered.resolve();
  await renewed;
  gateway.answer = (call) => handled(call);
  await until(async () => {
    await worker.sweep();
    return gateway.callsOf(id).length === 2;
  });
  await assertEndedOnce(fn, [id]);
});

it('what a worker runs is not taken for left behind by itself after it stalled for longer than a lease', async () => {
  const fn = await newCalled();
  const held = holdCalls();
  const [id = ''] = await spawnMany(fn, 1);
  await using worker = startWorker(3_600_000);
  await until(() => held.length === 1);
  await database.pool.query(
    `update invocations set lease_until = now() - interval '1 second' where id = $1`,
    [id],
  );
  await worker.sweep();
  const [row] = await rowsOf([id]);
  assert.deepEqual([row?.status, row?.attempt], ['running', 1]);
  for (const call of held) handled(call);
  await assertEndedOnce(fn, [id]);
});

it('the call of an attempt that its worker has lost and leased again is cut off', async () => {
  const fn = await newCalled();
  const held = holdCalls();
  const [id = ''] = await spawnMany(fn, 1);
  await using worker = startWorker(3_600_000);
  await until(() => held.length === 1);
  // As another server returns it to the queue.
  await database.pool.query(`update invocations set status = 'pending', lease_until = null where id = $1`, [
    id,
  ]);
  worker.kick();
  await until(() => held.length === 2 && held[0]?.response.closed === true);
  for (const call of held) handled(call);
  await assertEndedOnce(fn, [id]);
});
