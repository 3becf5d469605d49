/** What passes through the engine, and in what form. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import http, { type IncomingMessage } from 'node:http';
import { connect } from 'node:net';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { test } from 'node:test';
import { eventually } from '@releap/testing/eventually';
import { DOMAIN, key, token } from '../support/preview-world.ts';
import {
  world,
  ports,
  type Options,
  call,
  callRouted,
  openRouted,
  withToken,
  route,
} from '../support/engine-world.ts';
import { assertSlowReaderStopsServer } from '../support/slow-reader.ts';

test('a routed request reaches the guest as one through the gateway does, without credentials of the service', async () => {
  const host = world.hostOf('private-a');
  const request: Options = {
    method: 'PUT',
    path: '/a%2Fb/../c?x=1&y=%20',
    headers: {
      authorization: `Bearer ${key}`,
      ...withToken,
      'x-daytona-preview-token': token,
      cookie: `a=b; rlp_preview=${token};c=d; __Host-rlp_preview=${token}`,
      'x-forwarded-for': '9.9.9.9',
      'x-forwarded-server': 'x',
      forwarded: 'for=9.9.9.9',
      'x-real-ip': '9.9.9.9',
      'x-own': 'kept',
      'proxy-authorization': 'Basic eDp5',
      'x-request-id': 'of-the-client',
    },
    body: Buffer.from('hello'),
  };
  await route(host, { headers: withToken });
  for (const headers of [
    { authorization: `Bearer ${key}` },
    { authorization: `bearer  ${token}` },
    { cookie: `rlp_preview=${token}` },
    { 'x-daytona-preview-token': token },
  ])
    await route(host, { headers });
  const seen = [];
  for (const port of Object.values(ports)) {
    world.seen = [];
    const at = `${host.toUpperCase()}:${port}`;
    const answer = port === ports.engine ? await callRouted(at, request) : await call(port, at, request);
    assert.deepEqual([answer.status, answer.body.toString()], [200, 'hello']);
    assert.equal(answer.headers['x-request-id'], 'of-the-client');
    const [one] = world.seen;
    assert.doesNotMatch(JSON.stringify(one?.rawHeaders), new RegExp(`${key}|${token}|9\\.9\\.9\\.9`));
    const { connection: _hop, ...headers } = one?.headers ?? {};
    seen.push({
      ...headers,
      host: headers.host?.replace(/:\d+$/, ''),
      'x-forwarded-host': String(headers['x-forwarded-host']).replace(/:\d+$/, ''),
      url: one?.url,
    });
  }
  assert.deepEqual(seen[1], { ...seen[0], cookie: 'a=b;c=d' });
  assert.equal(seen[0]?.['cookie'], 'a=b; c=d');
  assert.equal(seen[0]?.['x-forwarded-host'], host);
});

test("a guest's own credentials and cookies pass, but no cookie for other hosts, and no header of the connection", async () => {
  const host = world.hostOf('public-cookies');
  await route(host);
  world.serve = (request, response) => {
    response.writeHead(401, {
      'www-authenticate': 'Basic realm="guest"',
      'keep-alive': 'timeout=9',
      'set-cookie': ['a=1; Path=/', `b=2; Domain=${DOMAIN}; Secure`, 'c=3;domain=x; DOMAIN = .test; Path=/'],
    });
    response.end(request.headers.authorization);
  };
  for (const [name, port] of Object.entries(ports)) {
    const headers = { authorization: 'Basic eDp5', cookie: 'session=1' };
    const answer = await call(port, host, { headers });
    assert.deepEqual([answer.status, answer.body.toString()], [401, 'Basic eDp5'], name);
    assert.equal(world.seen.at(-1)?.headers.cookie, 'session=1', name);
    assert.deepEqual(answer.headers['set-cookie'], ['a=1; Path=/', 'b=2; Secure', 'c=3; Path=/'], name);
  }
});

test('an answer may have no, one or two cookies and repeated Connection headers', async () => {
  for (const cookies of [[], ['a=1; Path=/'], ['a=1; Path=/', 'b=2']]) {
    const host = world.hostOf(`public-with-${cookies.length}`);
    world.serve = (_request, response) => {
      const lines = [
        'HTTP/1.1 200 OK',
        'content-length: 2',
        'connection: close',
        'connection: x-hop',
        'x-hop: 1',
        ...cookies.map((cookie) => `set-cookie: ${cookie}`),
      ];
      response.socket?.end(`${lines.join('\r\n')}\r\n\r\nok`);
    };
    for (const [name, port] of Object.entries(ports)) {
      const answer = await call(port, host);
      assert.deepEqual([answer.status, answer.body.toString()], [200, 'ok'], name);
      assert.deepEqual(answer.headers['set-cookie'] ?? [], cookies, name);
      assert.equal(answer.headers['x-hop'], undefined, name);
    }
    await route(host);
  }
});

test('bodies of any framing pass both ways at the pace of their reader', async () => {
  const host = world.hostOf('public-bodies');
  await route(host);
  const body = randomBytes(5_000_000);
  for (const [what, headers] of [
    ['a length', { 'content-length': body.length }],
    ['chunks', {}],
    ['a client that waits for 100 Continue', { 'content-length': body.length, expect: '100-continue' }],
  ] as const) {
    const pieces = Readable.from([body.subarray(0, 7), body.subarray(7)]);
    const answer = await call(ports.engine, host, { method: 'POST', headers, body: pieces });
    const got = `${what}: ${answer.status}, ${answer.body.length} bytes, ${answer.body.toString('latin1', 0, 100)}`;
    assert.ok(answer.body.equals(body), got);
  }
  await assertSlowReaderStopsServer(world, ports.engine, host);
});

/** One frame of gRPC-web: a flag, a length, and a message or trailers. */
const frame = (flag: number, payload: string): Buffer => {
  const head = Buffer.alloc(5);
  head.writeUInt8(flag);
  head.writeUInt32BE(Buffer.byteLength(payload), 1);
  return Buffer.concat([head, Buffer.from(payload)]);
};

test('events, WebSockets and gRPC-web pass; a client that closes its half ends the request', async () => {
  const host = world.hostOf('private-streams');
  await route(host, { headers: withToken });
  world.serve = (_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('data: 1\n\n');
    finish = () => response.end('data: 2\n\n');
  };
  let finish = (): unknown => undefined;
  const events = http.get({
    host: '127.0.0.1',
    port: ports.engine,
    headers: { host, ...withToken },
    agent: false,
  });
  const [stream] = (await once(events, 'response')) as [IncomingMessage];
  assert.equal(String((await once(stream, 'data'))[0]), 'data: 1\n\n');
  finish();
  assert.equal(String((await once(stream, 'data'))[0]), 'data: 2\n\n');

  const socket = await openRouted(host, withToken, '/ws');
  const message = randomBytes(300_000);
  socket.send(message);
  assert.deepEqual((await once(socket, 'message'))[0], message);
  assert.doesNotMatch(JSON.stringify(world.seen.at(-1)?.rawHeaders), new RegExp(token));
  socket.close();
  await once(socket, 'close');

  world.serve = (incoming, response) => {
    void buffer(incoming).then((sent) => {
      assert.deepEqual(sent, frame(0, 'ping'));
      response.writeHead(200, { 'content-type': 'application/grpc-web+proto' });
      response.write(frame(0, 'pong'));
      response.end(frame(0x80, 'grpc-status: 0\r\n'));
    });
  };
  const headers = { ...withToken, 'content-type': 'application/grpc-web+proto', 'x-grpc-web': '1' };
  const grpc = await call(ports.engine, host, { method: 'POST', headers, body: frame(0, 'ping') });
  assert.deepEqual(grpc.body, Buffer.concat([frame(0, 'pong'), frame(0x80, 'grpc-status: 0\r\n')]));

  let ended = false;
  world.serve = (incoming) => incoming.socket.once('close', () => (ended = true));
  const half = connect({ port: ports.engine, host: '127.0.0.1', allowHalfOpen: true });
  half.end(`GET / HTTP/1.1\r\nhost: ${host}\r\nx-service-preview-token: ${token}\r\n\r\n`);
  half.resume().on('error', () => undefined);
  await eventually('the server sees the end', () => ended);
  half.destroy();
});
