/** Requests and answers, and how they pass. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import http, { type IncomingMessage } from 'node:http';
import { test } from 'node:test';
import { newToken, newUuid } from '@releap/contract';
import { until } from '@releap/testing/eventually';
import { key } from '../support/function-world.ts';
import { MAX, world, gateway, call, shown, errorOf } from '../support/function-calls.ts';

test('a call reaches the handler as POST /, with what the client sent and without credentials', async () => {
  const answer = await call('a body', {
    headers: {
      'content-type': 'text/x-mine',
      'x-mine': 'yes',
      'x-rlp-invocation-id': newUuid(),
      'x-rlp-source': 'spawn',
      'x-forwarded-for': '1.2.3.4',
      cookie: 'a=b',
    },
  });
  assert.deepEqual([...shown(answer), await answer.text()], [200, '200', '1', 'a body']);
  assert.equal(answer.headers.get('x-handler'), 'yes');
  assert.equal(answer.headers.get('x-rlp-fn-version'), '1');
  const [seen] = world.instances[0]?.seen ?? [];
  assert.deepEqual([seen?.method, seen?.url], ['POST', '/']);
  assert.deepEqual(
    ['authorization', 'cookie', 'x-rlp-source', 'x-mine', 'content-type', 'x-forwarded-for'].map(
      (name) => seen?.headers[name],
    ),
    [undefined, undefined, undefined, 'yes', 'text/x-mine', '1.2.3.4'],
  );
  assert.equal(seen?.headers['x-rlp-invocation-id'], answer.headers.get('x-rlp-invocation-id'));

  const warm = await call(null);
  assert.deepEqual([...shown(warm), await warm.text()], [200, '200', '0', '']);
  assert.equal(world.starts.length, 1);
});

test('a call with a key answers 200 whatever the handler answers, and headers about the origin are removed', async () => {
  world.handler = (request, response) => {
    request.resume();
    const status = Number(request.headers['x-status']);
    response.writeHead(status, {
      'set-cookie': 'a=b',
      'x-rlp-cold': '7',
      'x-mine': 'yes',
      connection: 'close',
    });
    response.end(status === 204 ? undefined : `status ${status}`);
  };
  for (const status of [418, 503, 204, 302]) {
    const answer = await call('x', { headers: { 'x-status': String(status) }, redirect: 'manual' });
    const text = await answer.text();
    assert.deepEqual(shown(answer).slice(0, 2), [200, String(status)]);
    assert.equal(text, status === 204 ? '' : `status ${status}`);
    assert.deepEqual(
      ['set-cookie', 'x-mine'].map((name) => answer.headers.get(name)),
      [null, 'yes'],
    );
    assert.match(answer.headers.get('x-rlp-cold') ?? '', /^[01]$/);
  }
});

test('requests and answers are streamed both ways', async () => {
  world.handler = (request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    request.on('data', (chunk: Buffer) => response.write(`data: ${chunk.toString()}\n\n`));
    request.on('end', () => response.end('data: end\n\n'));
  };
  const request = http.request({
    port: gateway.port,
    path: `/fns/${world.called.id}/invoke?a=b`,
    method: 'POST',
    headers: { authorization: `Bearer ${key}` },
  });
  request.write('begin');
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  let said = '';
  response.setEncoding('utf8').on('data', (chunk: string) => (said += chunk));
  await until(() => said === 'data: begin\n\n');
  for (const word of ['one', 'two']) {
    request.write(word);
    await until(() => said.endsWith(`data: ${word}\n\n`));
  }
  request.end();
  await once(response, 'end');
  assert.match(said, /end\n\n$/);
  assert.equal(response.headers['content-type'], 'text/event-stream');
  assert.equal(world.instances[0]?.seen[0]?.url, '/?a=b');
});

test('a body of 6 MiB passes, a larger one is refused, with a length and without', async () => {
  const whole = await call(Buffer.alloc(MAX, 'x'));
  assert.equal((await whole.arrayBuffer()).byteLength, MAX);
  const long = await call(Buffer.alloc(MAX + 1));
  assert.deepEqual(await errorOf(long), [
    400,
    `the body of a call is larger than ${MAX} bytes; pass a reference to larger data instead`,
  ]);
  world.handler = (request) => request.resume();
  const chunks = (async function* () {
    for (let sent = 0; sent <= MAX; sent += 65_536) yield Buffer.alloc(65_536);
  })();
  const chunked = await call(chunks, { duplex: 'half' });
  assert.equal(chunked.status, 400);
});

test('a public endpoint answers as the handler does, to any site, and hides what is not public', async () => {
  const token = newToken('function');
  world.decideFunction = ({ target, token: given }) => {
    if (target.project !== 'mine') return { status: 404, error: 'there is no such endpoint' };
    if (target.function === 'private' && given !== token)
      return { status: 401, error: 'a token is required' };
    return { function: world.called };
  };
  world.handler = (request, response) => {
    request.resume();
    response.writeHead(418, { 'content-type': 'text/html' }).end(request.headers.authorization);
  };
  const open = (name: string, init: RequestInit = {}, project = 'mine'): Promise<Response> =>
    fetch(`http://127.0.0.1:${gateway.port}/fn/${project}/${name}`, { method: 'POST', ...init });
  const bearer = (text: string): RequestInit => ({ headers: { authorization: `Bearer ${text}` } });
  const answer = await open('open', bearer('of-the-handler'));
  assert.deepEqual(shown(answer), [418, '418', '1']);
  assert.equal(await answer.text(), 'Bearer of-the-handler');
  assert.equal(answer.headers.get('access-control-allow-origin'), '*');
  assert.equal(answer.headers.get('content-security-policy'), 'sandbox');
  const withToken = await open('private', bearer(token));
  assert.deepEqual([withToken.status, await withToken.text()], [418, ''], 'the token stays here');
  const refused = await open('private', bearer(newToken('function')));
  assert.deepEqual([refused.status, refused.headers.get('access-control-allow-origin')], [401, '*']);
  assert.equal((await open('private')).status, 401);
  assert.equal((await open('open', {}, 'theirs')).status, 404);
  const questions = world.control.asked.length;
  const preflight = await open('private', {
    method: 'OPTIONS',
    headers: {
      'access-control-request-headers': 'authorization,x-mine',
      'access-control-request-method': 'POST',
    },
  });
  assert.equal(preflight.status, 204);
  assert.deepEqual(
    ['origin', 'methods', 'headers'].map((name) => preflight.headers.get(`access-control-allow-${name}`)),
    ['*', 'POST', 'authorization,x-mine'],
  );
  assert.equal(world.control.asked.length, questions, 'nothing was looked up');
});

test('a server of the control plane names the invocation', async () => {
  const dispatched = { ...world.called, dispatched: true };
  world.decideFunction = () => ({ function: dispatched });
  const id = newUuid();
  const answer = await call('x', {
    headers: { authorization: 'Bearer eyJh.eyJh.c2ln', 'x-rlp-invocation-id': id, 'x-rlp-queue': 'wait' },
  });
  assert.equal(answer.headers.get('x-rlp-invocation-id'), id);
  assert.ok(Number(answer.headers.get('x-rlp-duration-ms')) >= 0);
  assert.equal(world.instances[0]?.seen[0]?.headers['x-rlp-queue'], undefined);
});

test('an answer may repeat any header, also Connection, and has none, one or two cookies', async () => {
  for (const cookies of [[], ['a=1'], ['a=1', 'b=2']]) {
    world.handler = (request, response) => {
      request.resume();
      const lines = [
        'HTTP/1.1 200 OK',
        'content-length: 2',
        'connection: close',
        'connection: x-hop',
        'x-hop: 1',
        'x-twice: 1',
        'x-twice: 2',
        ...cookies.map((cookie) => `set-cookie: ${cookie}`),
      ];
      response.socket?.end(`${lines.join('\r\n')}\r\n\r\nok`);
    };
    const answer = await call('x');
    assert.deepEqual([answer.status, await answer.text()], [200, 'ok']);
    assert.deepEqual(
      ['x-twice', 'x-hop', 'set-cookie'].map((name) => answer.headers.get(name)),
      ['1, 2', null, null],
    );
  }
});

test('a client that guesses functions is refused without a question to control, its calls of known ones are served', async () => {
  const strict = await world.gateway({}, { guesses: 3 });
  const from = (address: string) => ({ headers: { 'x-forwarded-for': `198.51.100.1, ${address}` } });
  assert.equal((await call('known', from('203.0.113.1'), strict)).status, 200);
  const { decideFunction } = world;
  world.decideFunction = () => ({ status: 404, error: 'there is no such function' });
  const guess = async (address: string, count: number): Promise<number[]> => {
    const statuses = [];
    for (let at = 0; at < count; at++) {
      const path = `/fn/${world.called.project_id}/guess-${address}-${at}`;
      const answer = await fetch(`http://127.0.0.1:${strict.port}${path}`, {
        method: 'POST',
        ...from(address),
      });
      statuses.push(answer.status);
      await answer.text();
    }
    return statuses;
  };
  assert.deepEqual(await guess('203.0.113.1', 5), [404, 404, 404, 429, 429]);
  const asked = world.control.asked.length;
  assert.deepEqual(await guess('203.0.113.1', 2), [429, 429]);
  assert.equal(world.control.asked.length, asked);
  assert.deepEqual(await guess('203.0.113.2', 1), [404], 'another client');
  assert.equal((await call('known', from('203.0.113.1'), strict)).status, 200);
  // A proxy that does not say who its client is speaks for many.
  assert.deepEqual(await guess('unknown', 5), [404, 404, 404, 404, 404]);
  world.decideFunction = decideFunction;
});
