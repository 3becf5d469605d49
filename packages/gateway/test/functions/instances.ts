/** Leases of instances, and the records of calls. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newUuid } from '@releap/contract';
import { until } from '@releap/testing/eventually';
import { world, hasty, call } from '../support/function-calls.ts';

test('after a reconnect instances are claimed again; another one takes the place of one that is lost', async () => {
  assert.equal(await (await call('one')).text(), 'one');
  const first = world.instances[0]?.id;
  const claims = () => world.control.asked.filter(({ target }) => target.instance === first);
  world.control.disconnect();
  await until(() => claims().length === 1);
  assert.equal(await (await call('two')).text(), 'two');
  assert.equal(world.instances.length, 1);
  assert.equal(claims()[0]?.id, world.starts[0]?.id, 'under the id of the lease');
  world.decideInstance = ({ target }) =>
    target.instance === undefined ? undefined : { status: 409, error: 'another gateway has it' };
  world.control.disconnect();
  await until(() => claims().length === 2);
  assert.equal(await (await call('three')).text(), 'three');
  assert.equal(world.instances.length, 2);
});

test('control is told once that the handler of an instance listens, and again after a reconnect', async () => {
  const told = (): number => world.control.listening.filter((id) => id === world.instances[0]?.id).length;
  assert.equal(await (await call('one')).text(), 'one');
  assert.equal(await (await call('two')).text(), 'two');
  assert.equal(told(), 1);
  world.control.disconnect();
  await until(() => told() === 2);
});

test('a lease is renewed before it ends, and a revoked one is asked about', async () => {
  world.decideInstance = async ({ target }) =>
    target.instance === undefined
      ? { ...(await world.startInstance()), ttl_ms: 2_000 }
      : { vm_id: target.instance, data_url: 'unix:/nowhere', ttl_ms: 60_000 };
  assert.equal(await (await call('one')).text(), 'one');
  const renewals = () =>
    world.control.asked.filter(
      ({ target }) => target.instance !== undefined && target.version_id === world.called.version_id,
    );
  await until(() => renewals().length === 1);
  world.decideInstance = ({ target }) =>
    target.instance === undefined ? undefined : { status: 502, error: 'the sandbox has ended' };
  world.control.push({ type: 'revoke', ids: [world.starts[0]?.id ?? -1], disconnect: false });
  await until(() => renewals().length === 2);
  assert.equal(await (await call('two')).text(), 'two');
  assert.equal(world.instances.length, 2);
});

test('each call is recorded once it has ended, also when control cannot take it at first', async () => {
  const { control } = world;
  control.recorded.length = 0;
  let refusals = 0;
  control.onRecords = (rows) => (rows.length > 1 ? 400 : refusals++ < 1 ? 503 : 204);
  world.define({ timeout_s: 3 });
  world.handler = (request, response) => {
    request.resume();
    const status = Number(request.headers['x-status']);
    if (status > 0) response.writeHead(status).end('x'.repeat(10));
  };
  const made = performance.now();
  const good = await call('x', { headers: { 'x-status': '201' } });
  assert.equal((await call('x', { headers: { 'x-status': '404' } })).status, 200);
  assert.equal((await call('x')).status, 504);
  world.decideInstance = () => ({ status: 429, error: 'full' });
  const called = world.called.id;
  assert.equal((await call('x', {}, hasty)).status, 429);
  const rows = () => control.recorded.filter(({ function_id: id }) => id === called);
  await until(() => rows().length === 4);
  control.onRecords = () => 204;
  assert.deepEqual(
    new Map(rows().map(({ status, cold, error, source }) => [status, [cold, error, source]])),
    new Map<string, unknown[]>([
      ['succeeded', [true, null, 'invoke']],
      ['failed', [false, 'the handler answered 404', 'invoke']],
      ['timeout', [false, 'the handler did not answer within 3 s', 'invoke']],
      ['shed', [null, 'no instance had capacity for this request within 2 s: full', 'invoke']],
    ]),
  );
  const row = rows().find(({ status }) => status === 'succeeded');
  assert.equal(row?.id, good.headers.get('x-rlp-invocation-id'));
  assert.ok(row.duration_ms !== null && row.duration_ms <= performance.now() - made);
  assert.ok(row.started_at !== null && row.started_at >= row.queued_at && row.finished_at >= row.started_at);
  const timedOut = rows().find(({ status }) => status === 'timeout');
  // Timers round, and may end a millisecond early.
  assert.ok((timedOut?.duration_ms ?? 0) >= 2_990);
});

test('idle instances are given up after their time, under pressure, and when the gateway stops', async () => {
  world.define({ scaledown_window_s: 1 });
  await (await call('x')).text();
  const [first] = world.starts;
  await until(() => world.control.released.includes(first?.id ?? -1));
  assert.deepEqual(world.control.discarded, []);

  world.define();
  await (await call('x')).text();
  world.control.push({ type: 'pressure', function_ids: [newUuid()] });
  world.control.push({ type: 'pressure', function_ids: [world.called.id] });
  await until(() => world.control.released.includes(world.starts[1]?.id ?? -1));

  const other = await world.gateway();
  world.define();
  await (await call('x', {}, other)).text();
  await other.close();
  // The other gateway may record its calls later.
  const isRecorded = world.control.recorded.some(({ function_id: id }) => id === world.called.id);
  assert.equal(isRecorded, true, 'recorded before it stops');
  await until(() => world.control.released.includes(world.starts[2]?.id ?? -1));
});

test('a gateway that drains finishes open calls, takes none that need a new instance, and says so to probes', async () => {
  const own = await world.gateway();
  const finish = Promise.withResolvers<void>();
  world.handler = (request, response) => {
    request.resume();
    response.write('begin ');
    void finish.promise.then(() => response.end('end'));
  };
  const open = await call('x', {}, own);
  const drained = own.drain(60_000);
  const health = await fetch(`http://127.0.0.1:${own.port}/healthz`);
  assert.deepEqual([health.status, health.headers.get('connection')], [503, 'close']);
  const probe = async (path: string) => (await fetch(`http://127.0.0.1:${own.port}${path}`)).status;
  assert.deepEqual([await probe('/readyz'), await probe('/livez')], [503, 200], 'not restarted meanwhile');
  world.define();
  const other = await call('x', {}, own);
  const refusal = {
    error: 'the gateway is stopping; try again',
    code: 'unavailable',
    retryable: true,
    request_id: other.headers.get('x-request-id'),
  };
  assert.deepEqual(
    [other.status, other.headers.get('connection'), await other.json()],
    [503, 'close', refusal],
  );
  finish.resolve();
  assert.equal(await open.text(), 'begin end');
  await drained;

  world.handler = (_request, response) => void response.write('endless');
  const late = await world.gateway();
  const endless = await call('x', {}, late);
  const hurry = new AbortController();
  const ended = late.drain(60_000, hurry.signal);
  hurry.abort();
  await ended;
  await late.close();
  await assert.rejects(endless.text());
});
