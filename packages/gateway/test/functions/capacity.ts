/** Calls that wait for an instance. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { FUNCTION_QUEUE_HEADER, newUuid } from '@releap/contract';
import { until } from '@releap/testing/eventually';
import { echo, key } from '../support/function-world.ts';
import { world, gateway, hasty, call, errorOf } from '../support/function-calls.ts';

test('as many requests at a time as the function allows, each on an instance that has capacity', async () => {
  world.define({ max_concurrency: 2, max_instances: 2 });
  let most = 0;
  let present = 0;
  const release: (() => void)[] = [];
  world.handler = (request, response, { id }) => {
    request.resume();
    most = Math.max(most, ++present);
    release.push(() => {
      present--;
      response.end(id);
    });
  };
  const calls = Array.from({ length: 6 }, () => call('x'));
  await until(() => present === 4);
  const ended = Promise.all(calls);
  while ((await Promise.race([ended, sleep(1)])) === undefined) release.shift()?.();
  const answers = await ended;
  const ids = await Promise.all(answers.map((answer) => answer.text()));
  assert.equal(new Set(ids).size, 2);
  assert.deepEqual([most, world.starts.length], [4, 2]);
});

test('a call that finds no capacity in time gets 429, and control is asked again meanwhile', async () => {
  world.decideInstance = () => ({ status: 429, error: 'no host has capacity' });
  const answer = await call('x', {}, hasty);
  assert.equal(answer.headers.get('retry-after'), '5');
  const [status, error] = await errorOf(answer);
  assert.equal(status, 429);
  assert.match(error, /no instance .* within 2 s: no host has capacity/);
  let refusals = 2;
  world.decideInstance = () => (refusals-- > 0 ? { status: 429, error: 'no host has capacity' } : undefined);
  assert.equal((await call('x')).status, 200);
  assert.equal(refusals, -1);
});

const strangerCall = (name = world.called.id): Promise<Response> =>
  fetch(`http://127.0.0.1:${hasty.port}/fn/${world.called.project_id}/${name}`, { method: 'POST' });

test('a call without quota for an instance is told the limit, its use and its owner, and a stranger is not', async () => {
  const quota = { owner: newUuid(), resource: 'function_instances' as const, limit: 7, used: 7 };
  const error = `organization ${quota.owner} uses 7 of its quota of 7 function instances`;
  world.decideInstance = () => ({ status: 429, error, quota });
  const answer = await call('x', {}, hasty);
  const { message, ...told } = (await answer.json()) as Record<string, unknown>;
  assert.match(String(message), /within 2 s: organization .* quota of 7/);
  assert.deepEqual([answer.status, answer.headers.get('retry-after')], [429, '5']);
  const code = { code: 'quota_exceeded', retryable: true, request_id: answer.headers.get('x-request-id') };
  assert.deepEqual(told, { error: message, retry_after_secs: 5, ...code, ...quota });
  const { id } = world.called;
  const stranger = await strangerCall();
  assert.deepEqual([stranger.status, stranger.headers.get('retry-after')], [429, '5']);
  assert.doesNotMatch(await stranger.text(), /quota|organization|limit|owner/);
  const recorded = () => world.control.recorded.filter((one) => one.function_id === id);
  await until(() => recorded().length === 2);
  for (const { error: reason } of recorded()) assert.match(reason ?? '', /quota of 7 function instances/);
});

test('a stranger is not told the balance of an organization without credits', async () => {
  const broke = { status: 402, error: 'out of credits: its balance is -3.25, and must be above 0' };
  world.decideInstance = () => broke;
  assert.deepEqual(await errorOf(await call('x', {}, hasty)), [402, broke.error]);
  const error = 'the organization that owns this project is out of credits';
  assert.deepEqual(await errorOf(await strangerCall()), [402, error]);
  world.decideFunction = () => broke;
  assert.deepEqual(await errorOf(await strangerCall('another')), [402, error]);
});

test('a call is refused at once when too many wait already, of its function or of all', async () => {
  const small = await world.gateway({ waitingOfVersion: 2, waiting: 3 });
  const started = Promise.withResolvers<void>();
  world.decideInstance = async () => {
    await started.promise;
    return await world.startInstance();
  };
  const waiting = (count: number) => until(() => world.control.asked.length >= count);
  const first = [call('a', {}, small), call('b', {}, small)];
  // Two questions for instances, and one about the function.
  await waiting(3);
  const refused = await call('c', {}, small);
  assert.equal(refused.headers.get('retry-after'), '5');
  assert.deepEqual(await errorOf(refused), [429, 'too many calls wait for an instance already']);
  world.define();
  const other = call('d', {}, small);
  await waiting(5);
  assert.equal((await call('e', {}, small)).status, 429);
  started.resolve();
  const answers = await Promise.all([...first, other]);
  assert.deepEqual(await Promise.all(answers.map((answer) => answer.text())), ['a', 'b', 'd']);
});

test('calls of one organization that wait leave places to others, and none is needed for an idle instance', async () => {
  const small = await world.gateway({ waiting: 4 });
  const started = Promise.withResolvers<void>();
  const [flooding, other] = [newUuid(), newUuid()];
  const { decideInstance } = world;
  world.define({ org_id: other });
  const served = world.called;
  assert.equal((await call('first', {}, small)).status, 200);
  world.decideInstance = async () => {
    await started.promise;
    return await world.startInstance();
  };
  // Functions of two projects.
  const waiting: Promise<Response>[] = [];
  for (const text of ['one', 'two']) {
    const { version_id: id } = world.define({ org_id: flooding });
    waiting.push(call(text, {}, small));
    await until(() => world.control.asked.some(({ target }) => target.version_id === id));
  }
  world.define({ org_id: flooding });
  const refused = await call('flood', {}, small);
  assert.deepEqual(await errorOf(refused), [429, 'too many calls wait for an instance already']);
  world.called = served;
  assert.equal(await (await call('again', {}, small)).text(), 'again');
  world.define({ org_id: other });
  const late = call('other', {}, small);
  started.resolve();
  assert.equal(await (await late).text(), 'other');
  assert.deepEqual(await Promise.all(waiting.map(async (one) => (await one).status)), [200, 200]);
  world.decideInstance = decideInstance;
});

test('what control refuses for all is answered at once', async () => {
  for (const [status, error] of [
    [402, 'no credits are left'],
    [502, 'the handler ended with status 1: no such file'],
  ] as const) {
    world.decideInstance = () => ({ status, error });
    assert.deepEqual(await errorOf(await call('x')), [status, error]);
  }
  world.decideFunction = () => ({ status: 404, error: 'function "hello" has no version that can serve' });
  world.define();
  assert.deepEqual(await errorOf(await call('x')), [404, 'function "hello" has no version that can serve']);
  const other = { method: 'GET', body: null };
  assert.equal((await call(null, other)).status, 404);
  assert.equal((await call('x', { headers: { authorization: 'Bearer nothing' } })).status, 401);
});

test('calls of a version that is gone wait for the newer one', async () => {
  const old = world.called;
  const asked: string[] = [];
  world.decideInstance = ({ target: { version_id: id = '' } }) => {
    asked.push(id);
    if (id !== old.version_id) return undefined;
    world.called = { ...old, version: 2, version_id: newUuid(), revision: 2 };
    const question = world.control.asked.find(({ target }) => target.function === old.id);
    world.control.push({ type: 'revoke', ids: [question?.id ?? -1], disconnect: false });
    return { status: 404, error: 'this version is not current' };
  };
  const path = `/fns/${old.id}/invoke`;
  const answer = await fetch(`http://127.0.0.1:${gateway.port}${path}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}` },
  });
  assert.equal(answer.headers.get('x-rlp-fn-version'), '2');
  assert.deepEqual(asked, [old.version_id, world.called.version_id]);
});

test('calls of a version that is still tried are told what they wait for, and async ones wait', async () => {
  const error = 'its image "debian" is being made';
  const { decideInstance } = world;
  world.define({ dispatched: true });
  world.handler = (request, response) => void request.resume().on('end', () => response.end('served'));
  world.decideInstance = () => ({ status: 429, error, not_tried_yet: true });
  const patient = call('x', { headers: { [FUNCTION_QUEUE_HEADER]: 'wait' } }, hasty);
  const answer = await call('x', {}, hasty);
  assert.deepEqual(
    [answer.status, answer.headers.get('retry-after'), ((await answer.json()) as { error: string }).error],
    [429, '5', `no instance could serve this request within 2 s: ${error}`],
  );
  world.decideInstance = decideInstance;
  assert.equal(await (await patient).text(), 'served');
});

test('a call is told that the only instance ends, when its host is drained', async () => {
  world.define({ max_instances: 1 });
  const open = Promise.withResolvers<void>();
  world.handler = (request, response) => {
    request.resume();
    void open.promise.then(() => response.end('x'));
  };
  const slow = call('x', {}, hasty);
  await until(() => world.instances[0]?.seen.length === 1);
  const instances = [world.instances[0]?.id ?? ''];
  world.control.push({ type: 'pressure', function_ids: [], instances });
  const [status, error] = await errorOf(await call('y', {}, hasty));
  assert.equal(status, 429);
  assert.match(
    error,
    /within 2 s: its only instance \(max_instances\) ends with the calls .* host is drained/,
  );
  open.resolve();
  assert.equal(await (await slow).text(), 'x');
  world.handler = echo;
  assert.equal(await (await call('z', {}, hasty)).text(), 'z');
  assert.equal(world.instances.length, 2);
});
