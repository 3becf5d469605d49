/** A control server that drains: what is in progress ends, and balancers learn that it takes no more. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startWorld, until, type World } from '@releap/testing/world';
import { newFunction } from './support/functions.ts';
import { handled, startScriptedGateway, type GatewayCall } from './support/scripted-gateway.ts';

/** A world whose gateway holds each call until it is let go. */
async function startHeld() {
  await using stack = new AsyncDisposableStack();
  const gateway = stack.use(await startScriptedGateway());
  const world = stack.use(await startWorld({ region: { id: 'here', toolboxProxyUrl: gateway.toolboxUrl } }));
  const { name } = await newFunction(world.database, world.call.projectId);
  const finish = Promise.withResolvers<void>();
  gateway.answer = async (call: GatewayCall) => {
    await finish.promise;
    handled(call, '"done"');
  };
  const owned = stack.move();
  return { gateway, world, name, finish, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

const invoke = ({ control, call }: World, name: string): Promise<Response> =>
  fetch(`${control.url}/fns/${name}/invoke`, {
    method: 'POST',
    body: 'x',
    headers: { authorization: `Bearer ${call.key}` },
  });

test('a drain waits for calls that pass through, and keeps no connection open for another one', async () => {
  await using held = await startHeld();
  const { gateway, world, name, finish } = held;
  assert.equal((await fetch(`${world.control.url}/readyz`)).status, 200);
  const answer = invoke(world, name);
  await until(() => gateway.calls.length === 1);
  let isOver = false;
  const drained = world.control.drain(60_000).then(() => (isOver = true));
  for (const path of ['/readyz', '/healthz']) {
    const refused = await fetch(`${world.control.url}${path}`);
    assert.deepEqual([refused.status, refused.headers.get('connection')], [503, 'close'], path);
    assert.match(await refused.text(), /the server is stopping/);
  }
  assert.equal((await fetch(`${world.control.url}/livez`)).status, 200);
  assert.equal(isOver, false);
  finish.resolve();
  const { status, headers, ...rest } = await answer;
  assert.deepEqual([status, headers.get('connection')], [200, 'close'], JSON.stringify(rest));
  await drained;
});

test('a drain waits for invocations that no client waits for, and leases no others', async () => {
  await using held = await startHeld();
  const { gateway, world, name, finish } = held;
  const spawn = async (): Promise<string> =>
    (await world.call('POST', `/fns/${name}/spawn`, {})).body.invocation_id as string;
  const first = await spawn();
  await until(() => gateway.calls.length === 1);
  const drained = world.control.drain(60_000);
  const second = await spawn();
  // Another server runs it.
  await world.control.runTask('invocation-poll');
  finish.resolve();
  await drained;
  const statuses = await world.database.pool.query<{ id: string; status: string; attempt: number }>(
    'select id, status, attempt from invocations where id = any($1) order by queued_at',
    [[first, second]],
  );
  assert.deepEqual(
    statuses.rows.map(({ status, attempt }) => [status, attempt]),
    [
      ['succeeded', 1],
      ['pending', 0],
    ],
  );
});

test('a drain ends at its deadline, and at once when it is hurried', async () => {
  await using held = await startHeld();
  const { gateway, world, name, finish } = held;
  const answer = invoke(world, name);
  await until(() => gateway.calls.length === 1);
  await world.control.drain(1);
  const hurry = new AbortController();
  const drained = world.control.drain(3_600_000, hurry.signal);
  hurry.abort();
  await drained;
  finish.resolve();
  assert.equal((await answer).status, 200);
});
