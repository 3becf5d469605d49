/** Calls of functions at the base URL: spec, POST /fns/:name/invoke and POST /fn/:project/:name. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, before, beforeEach, test } from 'node:test';
import type { Writable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { newToken } from '@releap/contract';
import { startWorld, until, type World } from '@releap/testing/world';
import { mintApiKey } from '../src/index.ts';
import { insertFunction } from './support/function-versions.ts';

const stack = new AsyncDisposableStack();
let world: World;
let gateway: http.Server;
/** What the gateway does with a request. */
let serve: (request: IncomingMessage, response: ServerResponse) => void;
let seen: IncomingMessage[] = [];

before(async () => {
  gateway = http.createServer((request, response) => {
    seen.push(request);
    request.on('error', () => undefined);
    response.on('error', () => undefined);
    serve(request, response);
  });
  gateway.listen(0, '127.0.0.1');
  await once(gateway, 'listening');
  stack.defer(() => void gateway.close());
  stack.defer(() => gateway.closeAllConnections());
  const { port } = gateway.address() as AddressInfo;
  world = stack.use(
    await startWorld({
      rateLimits: { perKey: 300, perOrg: 0, perAddress: 300 },
      region: { id: 'here', name: 'Here', toolboxProxyUrl: `http://127.0.0.1:${port}/toolbox` },
    }),
  );
});
after(() => stack.disposeAsync());
beforeEach(() => {
  seen = [];
  serve = (request, response) => {
    response.writeHead(200, { 'content-type': 'text/x-mine', 'x-rlp-fn-status': '201' });
    request.pipe(response);
  };
});

const call = (path: string, { headers, ...init }: RequestInit = {}): Promise<Response> =>
  fetch(`${world.control.url}${path}`, {
    method: 'POST',
    ...init,
    headers: { authorization: `Bearer ${world.call.key}`, ...(headers as Record<string, string>) },
  });

/** A request whose body is still open, and its response. */
async function open(path: string, first: string): Promise<[http.ClientRequest, IncomingMessage]> {
  const headers = { authorization: `Bearer ${world.call.key}` };
  const request = http.request(`${world.control.url}${path}`, { method: 'POST', headers });
  request.on('error', () => undefined);
  request.write(first);
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  response.on('error', () => undefined);
  return [request, response];
}

test('any body of any type reaches the gateway as it was sent, with the credential, and so does the answer', async () => {
  const body = Buffer.from([0, 1, 2, 255]);
  for (const type of ['application/json', 'multipart/form-data', 'image/png', undefined]) {
    const headers = { 'x-mine': 'yes', ...(type && { 'content-type': type }) };
    const answer = await call('/fns/hello/invoke?a=b', { body, headers });
    assert.deepEqual([answer.status, answer.headers.get('x-rlp-fn-status')], [200, '201']);
    assert.equal(answer.headers.get('content-type'), 'text/x-mine');
    assert.deepEqual(Buffer.from(await answer.arrayBuffer()), body);
    const request = seen.at(-1);
    assert.equal(request?.url, '/fns/hello/invoke?a=b');
    assert.deepEqual(
      ['authorization', 'x-mine', 'content-type', 'x-forwarded-for', 'x-forwarded-proto'].map(
        (name) => request?.headers[name],
      ),
      [`Bearer ${world.call.key}`, 'yes', type, '127.0.0.1', 'http'],
    );
    assert.match(String(request?.headers['x-forwarded-host']), /^127\.0\.0\.1:\d+$/);
  }
  assert.equal((await call('/fns/hello/invoke')).status, 200, 'without a body');
});

test('preflights and the gateway’s refusals pass, other methods do not', async () => {
  serve = (request, response) => {
    request.resume();
    response
      .writeHead(request.method === 'OPTIONS' ? 204 : 401, { 'access-control-allow-origin': '*' })
      .end();
  };
  assert.equal((await call('/fn/some-project/hello', { method: 'OPTIONS' })).status, 204);
  const refused = await call('/fn/some-project/hello');
  assert.deepEqual([refused.status, refused.headers.get('access-control-allow-origin')], [401, '*']);
  const { length } = seen;
  assert.equal((await call('/fns/hello/invoke', { method: 'GET' })).status, 404);
  assert.equal((await call('/fn/some-project/hello', { method: 'PUT' })).status, 404);
  assert.equal(seen.length, length);
});

test('both directions are streamed', async () => {
  const [request, response] = await open('/fns/hello/invoke', 'one');
  let said = '';
  response.setEncoding('utf8').on('data', (chunk: string) => (said += chunk));
  await until(() => said === 'one');
  request.write('two');
  await until(() => said === 'onetwo');
  request.end();
  await once(response, 'end');
});

test('a client that is gone is gone for the gateway, before and after the response has begun', async () => {
  const closed = Promise.withResolvers<void>();
  serve = (request, response) => {
    request.resume();
    response.on('close', closed.resolve);
  };
  const waiting = new AbortController();
  const answer = call('/fns/hello/invoke', { body: 'x', signal: waiting.signal });
  await until(() => seen.length === 1);
  waiting.abort();
  await assert.rejects(answer);
  await closed.promise;

  const cut = Promise.withResolvers<void>();
  serve = (request, response) => {
    request.on('aborted', cut.resolve).resume();
    response.write('begin');
  };
  const [, response] = await open('/fns/hello/invoke', 'x');
  response.destroy();
  await cut.promise;
});

test('a slow reader slows its writer, in both directions', async () => {
  const most = 64 * 1024 * 1024;
  const piece = Buffer.alloc(65_536);
  /** Writes what is taken, until it stops being taken. @returns how much that was */
  const fill = async (stream: Writable): Promise<number> => {
    let written = 0;
    const write = (): void => {
      while (!stream.destroyed && written < most) {
        written += piece.length;
        if (!stream.write(piece)) return;
      }
    };
    stream.on('drain', write);
    write();
    await until(async () => {
      const earlier = written;
      await sleep(300);
      return written === earlier;
    });
    return written;
  };
  const filled = Promise.withResolvers<number>();
  serve = (request, response) => {
    request.resume();
    fill(response).then(filled.resolve, filled.reject);
  };
  const [, unread] = await open('/fns/hello/invoke', 'x');
  const answered = await filled.promise;
  unread.destroy();
  assert.ok(answered < most, `${answered} bytes were written to a client that reads nothing`);

  serve = (_request, response) => void response.write('begin');
  const [request] = await open('/fns/hello/invoke', 'x');
  const sent = await fill(request);
  request.destroy();
  assert.ok(sent < most, `${sent} bytes were taken that the gateway does not read`);
});

test('a key that is guessed is refused here, and counts for its address; calls count for their key', async () => {
  const guess = () =>
    call('/fns/hello/invoke', { headers: { authorization: `Bearer ${newToken('apiKey')}` } });
  assert.deepEqual([(await guess()).status, seen.length], [401, 0]);
  const own = await mintApiKey(world.database.pool, world.call.projectId, 'busy');
  const headers = { authorization: `Bearer ${own.token}` };
  const statuses = await Promise.all(
    Array.from({ length: 301 }, async () => (await call('/fns/hello/invoke', { headers })).status),
  );
  assert.deepEqual(
    [200, 429].map((status) => statuses.filter((one) => one === status).length),
    [300, 1],
  );
  assert.equal((await call('/fns/hello/invoke')).status, 200, 'another key');
  // More than the limit, in a window that may have begun long before.
  const guesses = () => Promise.all(Array.from({ length: 301 }, async () => (await guess()).status));
  await until(async () => (await guesses()).includes(429));
});

test('calls of a public function are not limited by address, guesses of functions are', async () => {
  const { name } = await insertFunction(world, { public: true });
  const path = `/fn/${world.call.projectId}/${name}`;
  await until(async () => (await call('/fn/some-project/hello')).status === 429);
  await until(async () => (await call(`/fn/${world.call.projectId}/guessed`)).status === 429);
  assert.equal((await call(path)).status, 200);
});

test('a gateway that dies or does not answer is said, and a begun answer is cut', async () => {
  serve = (request) => request.socket.destroy();
  const { name } = await insertFunction(world, { public: true });
  const died = await call(`/fn/${world.call.projectId}/${name}`, { body: 'x' });
  assert.deepEqual([died.status, died.headers.get('access-control-allow-origin')], [502, '*']);
  assert.match(await died.text(), /closed the connection before it answered; the function may have run/);
  serve = (request, response) => {
    response.write('begin');
    request.on('end', () => request.socket.destroy()).resume();
  };
  const [request, response] = await open('/fns/hello/invoke', 'x');
  request.end();
  await assert.rejects(text(response));
  await world.database.pool.query(`update regions set toolbox_proxy_url = 'http://127.0.0.1:1/toolbox'`);
  await until(async () => (await call('/fns/hello/invoke', { body: 'x' })).status === 503);
  const unanswered = await call('/fns/hello/invoke', { body: 'x' });
  assert.deepEqual(
    [unanswered.headers.has('retry-after'), await unanswered.json()],
    [
      true,
      {
        error: 'no gateway answers; try again',
        code: 'unavailable',
        retryable: true,
        request_id: unanswered.headers.get('x-request-id'),
      },
    ],
  );
  await world.database.pool.query('update regions set toolbox_proxy_url = null');
  await until(async () => {
    const answer = await call('/fns/hello/invoke', { body: 'x' });
    return answer.status === 503 && (await answer.text()).includes('no region has a gateway');
  });
});
