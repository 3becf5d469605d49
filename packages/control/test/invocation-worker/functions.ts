/** How invocations of a function end, and that those of others do not wait for them. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { until } from '@releap/testing/world';
import { ATTEMPTS_MAX } from '../../src/functions/invocations/worker.ts';
import { functionCost, newOrg, PRICES } from '../support/billing.ts';
import { newFunction } from '../support/functions.ts';
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

describe('a function', () => {
  it('does not wait behind the backlog of another', async () => {
    const [busy, other] = [await newCalled({ maxInstances: 1 }), await newCalled()];
    const held = holdCalls(({ name }) => name === busy.name);
    const backlog = await spawnMany(busy, 1000);
    await using worker = startWorker(60_000);
    await until(() => held.length > 0);
    const quick = await spawnMany(other, 10);
    worker.kick();
    await assertEndedOnce(other, quick);
    await until(() => held.length >= 16);
    assert.equal(held.length, 16, 'of one with few instances no more is sent than they need');
    gateway.answer = (call) => handled(call);
    for (const call of held) handled(call);
    await assertEndedOnce(busy, backlog);
  });

  it('of another organization is served while one floods the server with many functions', async () => {
    const { projectId } = await newOrg(database);
    const flood = await Promise.all(Array.from({ length: 8 }, () => newFunction(database, projectId)));
    const other = await newCalled();
    const held = holdCalls(({ name }) => name !== other.name);
    const backlog = (await Promise.all(flood.map((fn) => spawnMany(fn, 10)))).flat();
    await using worker = startWorker(60_000, undefined, 20);
    await until(() => held.length === 10);
    const quick = await spawnMany(other, 10);
    worker.kick();
    await assertEndedOnce(other, quick);
    assert.equal(held.length, 10, 'the flood has half of the places, and its backlog waits');
    gateway.answer = (call) => handled(call);
    for (const call of held) handled(call);
    await until(isDone(backlog));
  });

  it('with large payloads gets all of them', async () => {
    const fn = await newCalled();
    const body = Buffer.alloc(5 * 1024 * 1024, 'x');
    const held = holdCalls();
    const ids: string[] = [];
    // One at a time: no request stores more.
    for (let n = 0; n < 8; n += 1) ids.push(...(await spawnMany(fn, 1, body)));
    await using _worker = startWorker(60_000);
    await until(() => held.length === ids.length);
    assert.ok(held.every((call) => call.body.equals(body)));
    for (const call of held) handled(call);
    await assertEndedOnce(fn, ids);
  });

  it('whose instances end while they serve is tried five times, then the invocation fails with the reason', async () => {
    const fn = await newCalled();
    gateway.answer = (call) => refused(call, 502, 'the instance has ended');
    const ids = await spawnMany(fn, 3);
    await using _worker = startWorker(60_000);
    await until(isDone(ids));
    for (const { status, attempt, error } of await rowsOf(ids)) {
      assert.deepEqual([status, attempt], ['failed', ATTEMPTS_MAX]);
      assert.equal(error, 'it was tried 5 times: the instance has ended');
    }
    for (const id of ids) assert.equal(gateway.callsOf(id).length, ATTEMPTS_MAX);
  });

  it('costs the time of each attempt, also of those whose connection the handler broke', async () => {
    const fn = await newCalled();
    const broken = {
      'x-rlp-duration-ms': '1000',
      'x-rlp-cold': '0',
      'x-rlp-fn-version': '1',
      'x-rlp-fn-broken': '1',
    };
    let last = 502;
    gateway.answer = (call) =>
      gateway.callsOf(call.id).length < 3
        ? refused(call, 502, 'the handler closed the connection', broken)
        : refused(call, last, 'no', last === 502 ? broken : {});
    const [failing = ''] = await spawnMany(fn, 1);
    await using _worker = startWorker(60_000);
    await until(isDone([failing]));
    last = 404;
    const [deleted = ''] = await spawnMany(fn, 1);
    await until(isDone([deleted]));
    const { rows } = await database.pool.query<{ id: string; billed: string }>(
      'select id, billed from invocations where id = any($1)',
      [[failing, deleted]],
    );
    const billed = new Map(rows.map((row) => [row.id, BigInt(row.billed)]));
    assert.equal(billed.get(failing), functionCost(fn, 5_000_000n, PRICES));
    assert.equal(billed.get(deleted), functionCost(fn, 2_000_000n, PRICES));
  });

  it('that a proxy in front of the gateway answers is tried again, and no timeout of the proxy is charged', async () => {
    const fn = await newCalled();
    gateway.answer = (call) => {
      const statuses = [504, 404, 503, 429];
      const status = statuses[gateway.callsOf(call.id).length - 1];
      if (status === undefined) handled(call, '1', { durationMs: 0 });
      else call.response.writeHead(status, { 'content-type': 'text/html' }).end('<h1>nginx</h1>');
    };
    const ids = await spawnMany(fn, 1);
    await using _worker = startWorker(60_000);
    await until(isDone(ids));
    const [row] = await rowsOf(ids);
    assert.deepEqual([row?.status, row?.attempt], ['succeeded', 5]);
  });

  it('that no gateway takes fails when it is a day old', async () => {
    const fn = await newCalled();
    gateway.answer = (call) => refused(call, 503, 'functions cannot be looked up now');
    const ids = await spawnMany(fn, 1);
    await database.pool.query(
      `update invocations set queued_at = queued_at - interval '25 hours' where id = any($1)`,
      [ids],
    );
    await using _worker = startWorker(60_000);
    await until(isDone(ids));
    const [row] = await rowsOf(ids);
    assert.equal(row?.status, 'failed');
    assert.match(row.error ?? '', /no gateway took it within a day: functions cannot be looked up now/);
  });

  it('whose handler has answered, but not with HTTP, is run once', async () => {
    const fn = await newCalled();
    gateway.answer = (call) =>
      refused(call, 502, 'the handler did not answer with HTTP', {
        'x-rlp-duration-ms': '12.5',
        'x-rlp-cold': '1',
        'x-rlp-fn-version': '1',
      });
    const ids = await spawnMany(fn, 1);
    await using _worker = startWorker(60_000);
    await until(isDone(ids));
    const [row] = await rowsOf(ids);
    assert.deepEqual(
      [row?.status, row?.attempt, row?.error],
      ['failed', 1, 'the handler did not answer with HTTP'],
    );
    const { rows } = await database.pool.query(
      'select cold, version, duration_ms >= 12.5 as measured from invocations where id = $1',
      [ids[0]],
    );
    assert.deepEqual(rows, [{ cold: true, version: 1, measured: true }]);
    assert.equal(gateway.calls.length, 1);
  });

  it('whose servers die each time is tried five times', async () => {
    const fn = await newCalled();
    const ids = await spawnMany(fn, 2);
    await database.pool.query(
      `update invocations set status = 'running', attempt = $2, lease_until = now() - interval '1 second' where id = any($1)`,
      [ids, ATTEMPTS_MAX],
    );
    await using _worker = startWorker();
    await until(isDone(ids));
    for (const { status, error } of await rowsOf(ids))
      assert.deepEqual(
        [status, error],
        ['failed', 'it was tried 5 times: the servers that ran it have ended before it had'],
      );
    assert.equal(gateway.calls.length, 0);
  });
});
