/** Previews through the engine, next to the same through the gateway alone: both answer alike. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import http, { type IncomingMessage } from 'node:http';
import { connect as connectHttp2, type IncomingHttpHeaders, type IncomingHttpStatusHeader } from 'node:http2';
import { connect } from 'node:net';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { after, before, beforeEach, test } from 'node:test';
import { connect as connectTls } from 'node:tls';
import type { Gateway } from '@releap/gateway';
import { testAuthority } from '@releap/testing/certificates';
import { eventually } from '@releap/testing/eventually';
import { freePort } from '@releap/testing/ports';
import { WebSocket } from 'ws';
import { DOMAIN, key, PreviewWorld, token } from './support/preview-world.ts';

const ENGINE = 'engine';
let world: PreviewWorld;
let gateway: Gateway;
/** By name: the gateway's own listener, and the engine's. */
let ports: Record<'gateway' | 'engine', number>;

before(async () => {
  world = await PreviewWorld.start();
  world.reset();
  gateway = await world.gateway(ENGINE);
  assert.equal(gateway.previews?.isEngine, true);
  ports = { gateway: gateway.port, engine: gateway.previews.port };
});
after(() => world[Symbol.asyncDispose]());
beforeEach(() => world.reset());

interface Answer {
  status: number;
  headers: http.IncomingHttpHeaders;
  body: Buffer;
}

type Options = Omit<http.RequestOptions, 'headers'> & {
  headers?: http.OutgoingHttpHeaders;
  body?: Buffer | Readable;
};

async function call(at: number, host: string, { body, ...options }: Options = {}): Promise<Answer> {
  const request = http.request({
    host: '127.0.0.1',
    port: at,
    agent: false,
    ...options,
    headers: { host, ...options.headers },
  });
  const answered = once(request, 'response') as Promise<[IncomingMessage]>;
  if (body instanceof Readable) body.pipe(request);
  else request.end(body);
  const [answer] = await answered;
  return { status: answer.statusCode ?? 0, headers: answer.headers, body: await buffer(answer) };
}

const withToken = { 'x-service-preview-token': token };

/** Resolves when requests of this credential go straight to the server. */
async function route(host: string, options: Options = {}): Promise<void> {
  await eventually(`a route for ${host}`, async () => {
    const earlier = await world.routed(ENGINE);
    assert.equal((await call(ports.engine, host, options)).status, 200);
    return (await world.routed(ENGINE)) > earlier;
  });
}

/** A WebSocket that goes straight to the server: on a busy machine a route may be unconfirmed for a while. */
async function openRouted(host: string, headers: Record<string, string>): Promise<WebSocket> {
  return await eventually('a routed WebSocket', async () => {
    const earlier = await world.routed(ENGINE);
    const socket = new WebSocket(`ws://127.0.0.1:${ports.engine}/`, { headers: { host, ...headers } });
    await once(socket, 'open');
    if ((await world.routed(ENGINE)) > earlier) return socket;
    socket.terminate();
    return undefined;
  });
}

async function raw(port: number, text: string): Promise<string> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => undefined);
  socket.write(text);
  let said = '';
  socket.on('data', (chunk) => (said += String(chunk)));
  await once(socket, 'close');
  return said;
}

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
    const answer = await call(port, `${host.toUpperCase()}:${port}`, request);
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

test('each reason why there is no answer has the same text with and without the engine', async () => {
  const closed = await freePort();
  for (const [host, path = '/'] of [
    [world.hostOf('unknown')],
    [world.hostOf('private-b')],
    [world.hostOf('paused')],
    [world.hostOf('public', closed)],
    [`nothing.${DOMAIN}`],
    [world.hostOf('private-b'), `/?rlp_token=${key}`],
  ] as const) {
    const answers = await Promise.all(
      Object.values(ports).map(async (port) => await call(port, host, { path })),
    );
    assert.equal(answers[1]?.body.toString(), answers[0]?.body.toString());
    assert.equal(answers[1]?.status, answers[0]?.status);
    assert.ok((answers[0]?.status ?? 0) >= 400);
  }
});

test('a server that stops listening is a 502 with the text of the gateway, also for a route; one on loopback alone is reached', async () => {
  const late = http.createServer((_request, response) => response.end('late')).listen(0, '127.0.0.1');
  await once(late, 'listening');
  const { port } = late.address() as { port: number };
  const host = world.hostOf('private-late', port);
  await route(host, { headers: withToken });
  late.close();
  late.closeAllConnections();
  await once(late, 'close');
  for (const at of [ports.engine, ports.engine, ports.gateway]) {
    const answer = await call(at, host, { method: 'POST', headers: withToken, body: randomBytes(3_000) });
    assert.equal(answer.status, 502);
    assert.equal(
      answer.body.toString(),
      JSON.stringify({ error: `nothing listens on port ${port} of the sandbox` }),
    );
  }
  const before = await world.routed(ENGINE);
  const inside = world.hostOf('inside');
  for (let times = 0; times < 3; times++)
    assert.equal((await call(ports.engine, inside)).headers['x-guest'], 'yes');
  assert.equal(await world.routed(ENGINE), before, 'the engine cannot reach it');
});

test('a guest that answers no HTTP, or ends early, is a 502 with the text of the gateway', async () => {
  const host = world.hostOf('public-broken');
  for (const serve of [
    (request: IncomingMessage) => void request.socket.end('nonsense\r\n\r\n'),
    (request: IncomingMessage) => void request.socket.destroy(),
  ]) {
    world.reset();
    await route(host);
    world.serve = serve;
    for (const [name, port] of Object.entries(ports))
      for (const method of ['GET', 'POST']) {
        const answer = await call(port, host, { method });
        assert.deepEqual(
          [answer.status, answer.body.toString()],
          [502, `{"error":"the server at port ${world.port} of the sandbox did not answer"}`],
          `${name} ${method}`,
        );
      }
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
    assert.ok(answer.body.equals(body), what);
  }
  let written = 0;
  world.serve = (_request, response) => {
    const write = (): void => {
      while (written < 60_000_000) {
        written += 1_000_000;
        if (!response.write(body.subarray(0, 1_000_000))) return void response.once('drain', write);
      }
      response.end();
    };
    write();
  };
  const request = http.get({ host: '127.0.0.1', port: ports.engine, headers: { host }, agent: false });
  const [answer] = (await once(request, 'response')) as [IncomingMessage];
  let earlier = -1;
  while (earlier !== written) {
    earlier = written;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  assert.ok(written < 60_000_000, 'a reader that does not read stops the server');
  let size = 0;
  for await (const chunk of answer) size += (chunk as Buffer).length;
  assert.equal(size, 60_000_000);
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

  const before = await world.routed(ENGINE);
  const socket = new WebSocket(`ws://127.0.0.1:${ports.engine}/ws`, { headers: { host, ...withToken } });
  await once(socket, 'open');
  const message = randomBytes(300_000);
  socket.send(message);
  assert.deepEqual((await once(socket, 'message'))[0], message);
  assert.ok((await world.routed(ENGINE)) > before, 'it went straight to the server');
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

test('requests that two parsers may read in two ways do not reach the guest as two', async () => {
  const host = `host: ${world.hostOf('public-smuggle')}\r\n`;
  await route(world.hostOf('public-smuggle'));
  world.reset();
  const smuggled = 'GET /smuggled HTTP/1.1\r\n\r\n';
  for (const [what, text] of [
    ['two lengths', `POST / HTTP/1.1\r\n${host}content-length: 5\r\ncontent-length: 6\r\n\r\nhello!`],
    [
      'a length and chunks',
      `POST / HTTP/1.1\r\n${host}connection: close\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n${smuggled}`,
    ],
    [
      'another coding',
      `POST / HTTP/1.1\r\n${host}connection: close\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n${smuggled}`,
    ],
    [
      'an obscured coding',
      `POST / HTTP/1.1\r\n${host}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n${smuggled}`,
    ],
    [
      'two hosts',
      `GET /two HTTP/1.1\r\n${host}host: ${world.hostOf('private-a')}\r\nconnection: close\r\n\r\n`,
    ],
    [
      'another host in the target',
      `GET http://${world.hostOf('private-a')}/two HTTP/1.1\r\n${host}connection: close\r\n\r\n`,
    ],
    ['a space before the colon', `GET /two HTTP/1.1\r\n${host}transfer-encoding : chunked\r\n\r\n`],
    ['a bad chunk', `POST / HTTP/1.1\r\n${host}transfer-encoding: chunked\r\n\r\n5\r\nhello${smuggled}`],
    [
      'too large headers',
      `GET /two HTTP/1.1\r\n${host}x: ${'y'.repeat(20_000)}\r\nconnection: close\r\n\r\n`,
    ],
    [
      'headers beyond the buffer',
      `GET /two HTTP/1.1\r\n${host}x: ${'y'.repeat(60_000)}\r\nconnection: close\r\n\r\n`,
    ],
    ['no HTTP', 'nonsense\r\n\r\n'],
  ] as const) {
    const said = await raw(ports.engine, text);
    // RFC 9112 section 6.3 gives this one a meaning, and the engine takes the length out.
    if (what !== 'a length and chunks')
      assert.match(said, /^HTTP\/1\.1 4\d\d /, `${what}: ${said.slice(0, 200)}`);
    assert.equal(said.match(/HTTP\/1\.1 \d/g)?.length, 1, what);
    assert.ok(
      world.seen.every(
        ({ url, headers }) => url === '/' && !('content-length' in headers && 'transfer-encoding' in headers),
      ),
      `${what} reached the guest`,
    );
  }
});

test('a revocation removes the route, and ends what is open by that credential alone', async () => {
  const host = world.hostOf('private-revoked');
  const byKey = { authorization: `Bearer ${key}` };
  await route(host, { headers: withToken });
  await route(host, { headers: byKey });
  const [ended, staying] = [await openRouted(host, withToken), await openRouted(host, byKey)];
  const isGone = once(ended, 'close');
  world.control.decide = () => ({ status: 401, error: 'revoked' });
  const ids = world.control.asked.filter(({ token: shown }) => shown === token).map(({ id }) => id);
  world.control.push({ type: 'revoke', ids, disconnect: true });
  await isGone;
  assert.equal((await call(ports.engine, host, { headers: withToken })).status, 401);
  staying.send('still there');
  assert.equal(String((await once(staying, 'message'))[0]), 'still there');
  assert.equal((await call(ports.engine, host, { headers: byKey })).status, 200);

  // The sandbox is about to lose its address.
  const isEnded = once(staying, 'close');
  world.addresses.end('private-revoked');
  await isEnded;
  assert.equal(
    (await call(ports.engine, host, { headers: byKey })).status,
    200,
    'the gateway still has the grant',
  );
});

test('a grant that is not valid any more is asked for again, and open connections remain', async () => {
  const host = world.hostOf('public-moved');
  await route(host);
  const socket = await openRouted(host, {});
  const asked = world.control.asked.filter(({ target }) => target.sandbox === 'public-moved');
  world.control.decide = () => ({ status: 409, error: 'it is paused, and must be running' });
  world.control.push({ type: 'revoke', ids: asked.map(({ id }) => id), disconnect: false });
  await eventually('409', async () => (await call(ports.engine, host)).status === 409);
  socket.send('still there');
  assert.equal(String((await once(socket, 'message'))[0]), 'still there');
  socket.terminate();
});

test('without news from the control plane no route is used', async () => {
  const host = world.hostOf('public-silent');
  await route(host);
  world.control.talking = false;
  const before = await eventually('no routed request', async () => {
    const earlier = await world.routed(ENGINE);
    void call(ports.engine, host).catch(() => undefined);
    await new Promise((resolve) => setTimeout(resolve, 200));
    return (await world.routed(ENGINE)) === earlier && earlier;
  });
  assert.ok(before > 0);
  world.control.talking = true;
  world.control.disconnect();
  await route(host);
});

test('an engine that ends is started again, and one that cannot be started is replaced by the gateway itself', async () => {
  const host = world.hostOf('public-killed');
  await route(host);
  const admin = join(world.folder, ENGINE, 'admin.sock');
  const processes = await readFile('/proc/self/task/self/children', 'utf8').catch(() => '');
  assert.equal(processes, '');
  const children = await readFile(`/proc/${process.pid}/task/${process.pid}/children`, 'utf8');
  let killed = 0;
  for (const pid of children.trim().split(' ')) {
    const text = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
    if (!text.includes(`${join(world.folder, ENGINE)}/`)) continue;
    process.kill(Number(pid), 'SIGKILL');
    killed++;
  }
  assert.equal(killed, 1, admin);
  await eventually('an answer', async () => (await call(ports.engine, host)).status === 200);
  await route(host);

  const broken = await world.gateway('broken', {
    engine: { folder: join(world.folder, 'broken'), uid: 1, threads: -1 },
  });
  assert.equal(broken.previews?.isEngine, false);
  assert.equal((await call(broken.previews?.port ?? 0, host)).headers['x-guest'], 'yes');
});

test('HTTP/2 and TLS in front: requests, events and the sign-in of a browser; a renewed certificate is used', async () => {
  const authority = await testAuthority('previews');
  let issued = await authority.issue(`*.${DOMAIN}`);
  const secure = await world.gateway('secure', {
    isTls: true,
    engine: { ...world.engine('secure'), certificateMs: 50 },
    tls: {
      listen: { host: '127.0.0.1', port: await freePort() },
      load: async () => ({ certificate: issued.cert, key: issued.key }),
    },
  });
  assert.equal(secure.previews?.isEngine, true);
  const host = world.hostOf('private-h2');
  const session = connectHttp2(`https://127.0.0.1:${secure.tls?.port}`, {
    ca: authority.certificate,
    servername: host,
  });
  const request = async (headers: Record<string, string>, body?: Buffer) => {
    const stream = session.request({ ':authority': host, ...headers });
    stream.end(body);
    const [answer] = (await once(stream, 'response')) as [IncomingHttpHeaders & IncomingHttpStatusHeader];
    return { answer, body: await buffer(stream) };
  };
  try {
    const page = { accept: 'text/html', 'sec-fetch-mode': 'navigate' };
    const signIn = await request({ ':path': `/x?rlp_token=${token}`, ...page });
    assert.equal(signIn.answer['location'], `https://${host}/x`);
    const cookie = `__Host-rlp_preview=${token}`;
    assert.match(String(signIn.answer['set-cookie']), new RegExp(`^${cookie}; Path=/; HttpOnly`));
    const before = await world.routed('secure');
    await eventually('a route', async () => {
      assert.equal((await request({ ':path': '/', cookie })).answer[':status'], 200);
      return (await world.routed('secure')) > before;
    });
    const body = randomBytes(1_000_000);
    const answers = await Promise.all(
      Array.from({ length: 8 }, () => request({ ':method': 'POST', ':path': '/', cookie, own: 'x' }, body)),
    );
    for (const answer of answers) assert.ok(answer.body.equals(body));
    const seen = world.seen.at(-1)?.headers;
    assert.deepEqual(
      [seen?.host, seen?.cookie, seen?.['x-forwarded-proto'], seen?.['x-forwarded-for']],
      [host, undefined, 'https', '127.0.0.1'],
    );
    assert.equal((await request({ ':path': '/' })).answer[':status'], 401);

    const serial = async (): Promise<string> => {
      const socket = connectTls({
        port: secure.tls?.port ?? 0,
        host: '127.0.0.1',
        rejectUnauthorized: false,
      });
      await once(socket, 'secureConnect');
      const { serialNumber } = socket.getPeerCertificate();
      socket.destroy();
      return serialNumber;
    };
    const first = await serial();
    issued = await authority.issue(`*.${DOMAIN}`);
    await eventually('the renewed certificate', async () => (await serial()) !== first);
    assert.equal((await request({ ':path': '/', cookie })).answer[':status'], 200, 'on the open connection');
  } finally {
    session.close();
  }
});
