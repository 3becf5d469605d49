/** Handlers and clients that fail. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { until } from '@releap/testing/eventually';
import type { Decision } from '../support/fake-control.ts';
import { echo } from '../support/function-world.ts';
import { world, gateway, hasty, call, errorOf } from '../support/function-calls.ts';

test('a handler that does not answer in time is answered for, its instance discarded, a begun answer cut', async () => {
  world.define({ timeout_s: 3 });
  world.handler = (request) => request.resume();
  const slow = await call('x');
  assert.deepEqual(await errorOf(slow), [504, 'the handler did not answer within 3 s']);
  await until(() => world.control.discarded.length === 1);
  world.handler = (request, response) => {
    request.resume();
    response.write('begin');
  };
  const begun = await call('x');
  assert.equal(begun.status, 200);
  await assert.rejects(begun.text());
  world.handler = echo;
  assert.equal(await (await call('next')).text(), 'next');
  assert.equal(world.instances.length, 3);
});

test('a handler that dies, answers no HTTP, too many headers or nothing gets 502, and the next call works', async () => {
  // Whether it is known that the handler has answered: async calls are then not run again.
  const answers: [string, RegExp, boolean?][] = [
    ['', /closed the connection before it answered/, false],
    ['hello, this is no HTTP\r\n\r\n', /did not answer with HTTP/, true],
    [
      `HTTP/1.1 200 OK\r\nx-long: ${'x'.repeat(1_000_000)}\r\n\r\n`,
      /headers of the answer are too large/,
      true,
    ],
    [
      'HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n',
      /closed the connection|HTTP/,
    ],
  ];
  for (const [text, reason, isAnswered] of answers) {
    world.define();
    world.onSocket = (socket) => void socket.on('data', () => socket.end(text));
    const answer = await call('x');
    const [status, error] = await errorOf(answer);
    assert.equal(status, 502);
    assert.match(error, reason);
    if (isAnswered !== undefined)
      assert.equal(answer.headers.has('x-rlp-fn-broken'), !isAnswered, String(reason));
    assert.ok(Number(answer.headers.get('x-rlp-duration-ms')) >= 0, 'the time that the handler had');
    assert.equal(answer.headers.get('x-rlp-fn-version'), '1');
  }
  world.define({ max_instances: 1 });
  world.onSocket = (socket) =>
    void socket.on('data', () => socket.end('HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf'));
  const half = await call('x');
  assert.equal(half.status, 200);
  await assert.rejects(half.text());
  const again = await call('x');
  await assert.rejects(again.text());
  assert.equal(world.starts.at(-1)?.target.version_id, world.called.version_id, 'the same instance');
  assert.equal(world.starts.filter(({ target }) => target.version_id === world.called.version_id).length, 1);
});

test('an instance that is gone before anything was sent costs its caller nothing', async () => {
  assert.equal((await call('one')).status, 200);
  await world.instances[0]?.kill();
  const answer = await call('two');
  assert.deepEqual([answer.status, await answer.text()], [200, 'two']);
  assert.equal(world.instances.length, 2);
  assert.equal(world.instances[1]?.seen.length, 1);
});

test('a port on which nothing listens is said', async () => {
  // The second one is still starting when the time is over.
  const late = Promise.withResolvers<Decision>();
  world.decideInstance = () => (world.starts.length === 1 ? world.deafInstance() : late.promise);
  for (const answer of await Promise.all([call('x', {}, hasty), call('y', {}, hasty)])) {
    const [status, error] = await errorOf(answer);
    assert.equal(status, 502);
    assert.match(error, new RegExp(`nothing listens on port ${world.port}`));
  }
  // It would be asked for again on the next link.
  late.resolve({ status: 429, error: 'full' });
});

test('a handler hears of a client that is gone, and serves the next one', async () => {
  const gone = Promise.withResolvers<void>();
  world.handler = (request, response) => {
    request.resume();
    response.on('close', gone.resolve);
  };
  const cancelled = new AbortController();
  const answer = call('x', { signal: cancelled.signal });
  await until(() => world.instances[0]?.seen.length === 1);
  cancelled.abort();
  await assert.rejects(answer);
  await gone.promise;
  world.handler = echo;
  assert.equal(await (await call('next')).text(), 'next');
  assert.equal(world.instances.length, 1);
});

test('a client that is gone while it waits leaves nothing in the queue', async () => {
  const started = Promise.withResolvers<void>();
  world.decideInstance = async () => {
    await started.promise;
    return await world.startInstance();
  };
  const cancelled = new AbortController();
  const answer = call('never', { signal: cancelled.signal });
  await until(() => world.starts.length === 1);
  cancelled.abort();
  await assert.rejects(answer);
  const next = call('next');
  started.resolve();
  assert.equal(await (await next).text(), 'next');
  assert.deepEqual(
    world.instances.map(({ seen }) => seen.length),
    [1],
  );
});

test('revoked while queued: the call ends and never reaches the handler', async () => {
  const started = Promise.withResolvers<void>();
  world.decideInstance = async () => {
    await started.promise;
    return await world.startInstance();
  };
  const answer = call('never');
  await until(() => world.starts.length === 1);
  const grant = world.control.asked.find(({ target }) => target.kind === 'function');
  world.control.push({ type: 'revoke', ids: [grant?.id ?? 0], disconnect: true });
  assert.deepEqual(await errorOf(await answer), [401, 'the credential was revoked']);
  const next = call('next');
  started.resolve();
  assert.equal(await (await next).text(), 'next');
  assert.equal(world.instances.flatMap(({ seen }) => seen).length, 1);
});

test('revoked while the handler works: the client is answered at once, the call keeps its place', async () => {
  world.define({ max_instances: 1 });
  const finish = Promise.withResolvers<void>();
  world.handler = (request, response) => {
    request.resume();
    void finish.promise.then(() => response.end('late'));
  };
  const answer = call('x');
  await until(() => world.instances[0]?.seen.length === 1);
  const grant = world.control.asked.find(({ target }) => target.kind === 'function');
  world.control.push({ type: 'revoke', ids: [grant?.id ?? 0], disconnect: true });
  assert.deepEqual(await errorOf(await answer), [401, 'the credential was revoked']);
  finish.resolve();
});

test('one request at a time is one also when its client has disconnected: the next one waits until the handler is done', async () => {
  world.define({ max_instances: 1, max_concurrency: 1 });
  const done = Promise.withResolvers<void>();
  let heads = 0;
  // It does not look whether its client is still there.
  world.onSocket = (socket) => {
    socket.on('data', (data) => {
      heads += String(data).startsWith('POST') ? 1 : 0;
      if (heads > 1) socket.end('HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnext');
      else void done.promise.then(() => socket.end('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok'));
    });
  };
  world.allowHalfOpen = true;
  const cancelled = new AbortController();
  const first = call('first', { signal: cancelled.signal });
  await until(() => heads === 1);
  cancelled.abort();
  await assert.rejects(first);
  const second = call('second');
  await until(() => gateway.functions().waiting === 1);
  assert.deepEqual([gateway.functions().served, heads], [1, 1]);
  done.resolve();
  assert.equal(await (await second).text(), 'next');
  await until(() => world.control.recorded.some(({ error }) => error === 'the client disconnected'));
});

test('a cancelled call keeps its place for as long as a call may take, and not longer', async () => {
  world.define({ timeout_s: 2, max_instances: 1 });
  world.onSocket = (socket) => socket.resume();
  world.allowHalfOpen = true;
  const cancelled = new AbortController();
  const first = call('first', { signal: cancelled.signal });
  await until(() => gateway.functions().served === 1);
  cancelled.abort();
  await assert.rejects(first);
  await until(() => world.control.discarded.length === 1);
});
