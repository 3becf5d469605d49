/** Instances that serve nothing are frozen, and thawed for the next call. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { unavailable } from '@releap/contract';
import { until } from '@releap/testing/eventually';
import { call, world } from '../support/function-calls.ts';

const first = (): string => world.instances[0]?.id ?? '';
const asked = (operation: 'freeze' | 'thaw', id = first()): number =>
  world.frozen.asked.filter((line) => line === `${operation} ${id}`).length;
const frozen = (id = first()): Promise<void> => until(() => world.frozen.now.has(id));

test('an instance is frozen after the grace, and gets the next call when it is thawed', async () => {
  const open = Promise.withResolvers<void>();
  world.define({ max_concurrency: 2 });
  world.handler = (request, response, { id }) => {
    request.resume();
    assert.equal(world.frozen.now.has(id), false, 'a call was sent to a frozen instance');
    if (request.headers['x-waits'] === undefined) response.end(id);
    else void open.promise.then(() => response.end(id));
  };
  const slow = call('x', { headers: { 'x-waits': '1' } });
  await until(() => world.instances[0]?.seen.length === 1);
  assert.equal(await (await call('x')).text(), first());
  // Longer than the grace, in times of the gateway itself: another version's instance is frozen meanwhile.
  const { called } = world;
  const busy = first();
  world.define();
  await (await call('y')).text();
  await frozen(world.instances[1]?.id);
  assert.equal(world.frozen.now.has(busy), false, 'one with an open call is not frozen');
  open.resolve();
  assert.equal(await (await slow).text(), busy);
  await frozen();
  world.called = called;
  const answer = await call('x');
  assert.equal(await answer.text(), busy);
  assert.equal(answer.headers.get('x-rlp-cold'), '0');
  assert.equal(world.instances.length, 2);
  assert.equal(asked('thaw'), 2, 'when it was leased, and for the call');
});

test('calls in quick succession ask the runner for nothing', async () => {
  // What a call is charged keeps the instance for ten times as long.
  world.handler = (request, response) => {
    request.resume();
    setTimeout(() => response.end(), 100);
  };
  const questions = (): number => asked('thaw') + asked('freeze');
  // A machine that stalls for longer than that makes a pause between two calls: then they are made once more.
  await until(async () => {
    await (await call('x')).text();
    const before = questions();
    for (let count = 0; count < 10; count++) await (await call('x')).text();
    return questions() === before;
  });
  assert.equal(world.instances.length, 1);
});

test('a call that arrives during the freeze waits for the thaw, also when the freeze is done after it', async () => {
  await (await call('x')).text();
  const late = Promise.withResolvers<void>();
  const done = Promise.withResolvers<void>();
  world.frozen.before = async (operation) => {
    if (operation === 'thaw') return;
    await late.promise;
    done.resolve();
  };
  await until(() => asked('freeze') === 1);
  assert.equal((await call('x')).status, 200);
  late.resolve();
  await done.promise;
  assert.equal((await call('x')).status, 200);
  assert.equal(world.frozen.now.has(first()), false, 'the late freeze was refused');
  assert.equal(world.instances.length, 1);
});

test('an instance that cannot be thawed is discarded, and the call goes to another one', async () => {
  // With time for both instances in its queue.
  const brisk = await world.gateway({ thawMs: 200 });
  await (await call('x', {}, brisk)).text();
  await frozen();
  world.frozen.before = async (operation, id) => {
    if (operation === 'thaw' && id === first()) throw unavailable('its agent is gone');
  };
  const [lease] = world.starts;
  const answer = await call('body', {}, brisk);
  assert.deepEqual([answer.status, await answer.text()], [200, 'body']);
  assert.equal(world.instances.length, 2);
  assert.equal(world.instances[0]?.seen.length, 1, 'nothing of it was sent to the first one');
  await until(() => world.control.discarded.includes(lease?.id ?? -1));
});

test('a freeze and a thaw are repeated while the runner cannot be asked', async () => {
  await (await call('x')).text();
  let refusals = 2;
  world.frozen.before = async () => {
    if (refusals-- > 0) throw unavailable('the runner restarts');
  };
  await frozen();
  refusals = 2;
  assert.equal((await call('x')).status, 200);
  assert.equal(world.instances.length, 1);
});

test('an instance that another gateway has frozen is thawed before it is used', async () => {
  const other = await world.gateway();
  await (await call('x', {}, other)).text();
  await frozen();
  const held = world.instances[0];
  // Its gateway is gone, and control gives the instance to the next one that asks.
  world.decideInstance = ({ target }) =>
    target.instance === undefined && held !== undefined ? world.again(held) : undefined;
  assert.equal((await call('x')).status, 200);
  assert.equal(world.instances.length, 1);
  assert.equal(world.frozen.now.has(first()), false);
});

test('of instances that are wanted elsewhere, frozen ones end that have served nothing for longest', async () => {
  const open = Promise.withResolvers<void>();
  world.handler = (request, response) => {
    request.resume();
    if (request.headers['x-waits'] === undefined) response.end();
    else void open.promise.then(() => response.end());
  };
  // One that serves, and three that are frozen in this order.
  const busy = call('x', { headers: { 'x-waits': '1' } });
  await until(() => world.instances[0]?.seen.length === 1);
  for (const at of [1, 2, 3]) {
    world.define();
    await (await call('x')).text();
    await frozen(world.instances[at]?.id);
  }
  const ids = world.instances.map(({ id }) => id);
  const leases = world.starts.map(({ id }) => id);
  const discarded = (): number[] => leases.filter((id) => world.control.discarded.includes(id));
  // The third one is not among them.
  const instances = [ids[0] ?? '', ids[1] ?? '', ids[3] ?? '', 'another gateway has it'];
  world.control.push({ type: 'pressure', function_ids: [], idle: { instances, most: 1 } });
  await until(() => discarded().length === 1);
  assert.deepEqual(discarded(), [leases[1]]);
  world.control.push({ type: 'pressure', function_ids: [], idle: { instances, most: 5 } });
  await until(() => discarded().length === 2);
  assert.deepEqual(discarded(), [leases[1], leases[3]]);
  open.resolve();
  assert.equal((await busy).status, 200);
});
