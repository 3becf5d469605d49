/** Previews through a gateway, a runner's data server and a real agent, to servers that listen on 127.0.0.1 alone. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import https from 'node:https';
import { Readable } from 'node:stream';
import { after, before, beforeEach, test } from 'node:test';
import type { TLSSocket } from 'node:tls';
import { newToken, newUuid } from '@releap/contract';
import type { Gateway } from '@releap/gateway';
import { testAuthority } from '@releap/testing/certificates';
import { eventually } from '@releap/testing/eventually';
import { freePort } from '@releap/testing/ports';
import { WebSocket } from 'ws';
import { DATA_TOKEN, DOMAIN, key, PreviewWorld, raw, token } from './support/preview-world.ts';
import { assertSlowReaderStopsServer } from './support/slow-reader.ts';

let world: PreviewWorld;
let gateway: Gateway;
let closedPort: number;

before(async () => {
  world = await PreviewWorld.start({ throughAgent: true });
  gateway = await world.gateway();
  closedPort = await freePort();
});
after(() => world[Symbol.asyncDispose]());
beforeEach(() => world.reset());

const hostOf = (sandbox: string, at?: number): string => world.hostOf(sandbox, at);

interface Answer {
  status: number;
  headers: http.IncomingHttpHeaders;
  body: Buffer;
}

/** One request on a connection of its own. */
async function call(
  options: Omit<http.RequestOptions, 'headers'> & {
    headers?: http.OutgoingHttpHeaders;
    sandbox?: string;
    at?: number;
    body?: Buffer | Readable;
  },
): Promise<Answer> {
  const { sandbox = 'public', at = world.port, body, ...rest } = options;
  const request = http.request({
    host: '127.0.0.1',
    port: gateway.port,
    agent: false,
    ...rest,
    headers: { host: hostOf(sandbox, at), ...rest.headers },
  });
  const answered = once(request, 'response') as Promise<[IncomingMessage]>;
  if (body instanceof Readable) body.pipe(request);
  else request.end(body);
  const [answer] = await answered;
  const chunks: Buffer[] = [];
  for await (const chunk of answer) chunks.push(chunk as Buffer);
  return { status: answer.statusCode ?? 0, headers: answer.headers, body: Buffer.concat(chunks) };
}

const errorOf = ({ body }: Answer): string => (JSON.parse(body.toString()) as { error: string }).error;

test('a request reaches the guest as the client sent it, without credentials of the service', async () => {
  const answer = await call({
    sandbox: 'private',
    method: 'PUT',
    path: '/a%2Fb/../c?x=1&y=%20',
    headers: {
      authorization: `Bearer ${key}`,
      'x-service-preview-token': token,
      'x-daytona-preview-token': token,
      cookie: `a=b; rlp_preview=${token}`,
      'x-forwarded-for': '9.9.9.9',
      forwarded: 'for=9.9.9.9',
      'x-real-ip': '9.9.9.9',
      'x-own': 'kept',
    },
    body: Buffer.from('hello'),
  });
  assert.deepEqual([answer.status, answer.headers['x-guest'], answer.body.toString()], [200, 'yes', 'hello']);
  const [request] = world.seen;
  assert.ok(request);
  assert.deepEqual([request.method, request.url], ['PUT', '/a%2Fb/../c?x=1&y=%20']);
  const { headers } = request;
  assert.doesNotMatch(
    JSON.stringify(request.rawHeaders),
    new RegExp(`${key}|${token}|9\\.9\\.9\\.9|${DATA_TOKEN}`),
  );
  assert.equal(headers.host, hostOf('private'));
  assert.equal(headers.cookie, 'a=b');
  assert.equal(headers['x-own'], 'kept');
  assert.equal(headers['content-length'], '5');
  assert.equal(headers['x-forwarded-for'], '127.0.0.1');
  assert.equal(headers['x-forwarded-host'], hostOf('private'));
  assert.equal(headers['x-forwarded-proto'], 'http');
  assert.deepEqual(world.control.asked[0]?.target, { kind: 'preview', sandbox: 'private', port: world.port });
  assert.equal(world.control.asked[0]?.token, token, 'the header comes first');
});

test("the guest's own credentials and cookies pass in both directions, but no cookie for other hosts", async () => {
  world.serve = (request, response) => {
    response.writeHead(401, {
      'www-authenticate': 'Basic realm="guest"',
      'set-cookie': [
        'a=1; Path=/',
        `b=2; Domain=${DOMAIN}; Secure`,
        `c=3; domain=.${hostOf('public')}`,
        'd=4; Domain=test',
      ],
    });
    response.end(request.headers.authorization);
  };
  const answer = await call({ headers: { authorization: 'Basic eDp5', cookie: 'session=1' } });
  assert.deepEqual([answer.status, answer.body.toString()], [401, 'Basic eDp5']);
  assert.equal(world.seen[0]?.headers.cookie, 'session=1');
  assert.equal(answer.headers['www-authenticate'], 'Basic realm="guest"');
  assert.deepEqual(answer.headers['set-cookie'], ['a=1; Path=/', 'b=2; Secure', 'c=3', 'd=4']);
});

test('paths of the gateway itself are those of the guest on the host of a preview', async () => {
  for (const path of ['/healthz', `/toolbox/${newUuid()}/process/execute`, '/toolbox/ssh/host-keys']) {
    assert.equal((await call({ path })).headers['x-guest'], 'yes', path);
    assert.equal(world.seen.at(-1)?.url, path);
  }
  const own = await call({ path: '/healthz', headers: { host: `127.0.0.1:${gateway.port}` } });
  assert.equal(own.body.toString(), '{"status":"ok"}');
});

test('each reason why there is no answer has its own status: unknown, private, paused, nothing listens', async () => {
  const answers = await Promise.all([
    call({ sandbox: 'unknown' }),
    call({ sandbox: 'private' }),
    call({ sandbox: 'paused' }),
    call({ at: closedPort }),
    call({ headers: { host: `nothing.${DOMAIN}` } }),
  ]);
  assert.deepEqual(
    answers.map(({ status }) => status),
    [404, 401, 409, 502, 404],
  );
  assert.match(errorOf(answers[3]), new RegExp(`nothing listens on port ${closedPort}`));
  assert.equal(new Set(answers.map(errorOf)).size, 5);
});

test('a browser that opens a signed URL gets a cookie for this host, and the URL without the token', async () => {
  const page = { accept: 'text/html', 'sec-fetch-mode': 'navigate' };
  const path = `//evil.test/a?x=1&rlp_token=${token}&y`;
  const answer = await call({ sandbox: 'private', path, headers: page });
  assert.equal(answer.status, 303);
  assert.equal(answer.headers.location, `http://${hostOf('private')}//evil.test/a?x=1&y`);
  assert.equal(answer.headers['cache-control'], 'no-store');
  assert.equal(answer.headers['referrer-policy'], 'no-referrer');
  const [cookie = ''] = answer.headers['set-cookie'] ?? [];
  assert.equal(cookie, `rlp_preview=${token}; Path=/; HttpOnly; SameSite=Lax`);
  assert.equal(world.seen.length, 0, 'the guest does not see it');
  const opened = await call({ sandbox: 'private', headers: { ...page, cookie: cookie.split(';')[0] } });
  assert.equal(opened.headers['x-guest'], 'yes');
  assert.equal(world.seen[0]?.headers.cookie, undefined);

  const wrong = newToken('preview');
  const refused = await call({ sandbox: 'private', path: `/?rlp_token=${wrong}`, headers: page });
  assert.deepEqual([refused.status, refused.headers['set-cookie']], [401, undefined]);
  // Programs get the answer at once.
  for (const method of ['GET', 'POST']) {
    assert.equal((await call({ sandbox: 'private', method, path: `/b?rlp_token=${token}` })).status, 200);
    assert.equal(world.seen.at(-1)?.url, '/b');
  }
  assert.equal((await call({ sandbox: 'private', path: `/?rlp_token=${key}` })).status, 401);
});

test('bodies of any length and framing pass in both directions, at the pace of their reader', async () => {
  const body = randomBytes(5_000_000);
  const digest = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');
  for (const [what, headers] of [
    ['a length', { 'content-length': body.length }],
    ['chunks', {}],
    ['a client that waits for 100 Continue', { 'content-length': body.length, expect: '100-continue' }],
  ] as const) {
    const answer = await call({
      method: 'POST',
      headers,
      body: Readable.from([body.subarray(0, 7), body.subarray(7)]),
    });
    assert.equal(digest(answer.body), digest(body), what);
  }
  await assertSlowReaderStopsServer(world, gateway.port, hostOf('public'));
});

test('events are delivered as they are sent; WebSockets echo, with a token in the header, the URL or the cookie', async () => {
  const streams: ServerResponse[] = [];
  world.serve = (_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('data: 1\n\n');
    streams.push(response);
  };
  const request = http.get({
    host: '127.0.0.1',
    port: gateway.port,
    headers: { host: hostOf('public') },
    agent: false,
  });
  const [events] = (await once(request, 'response')) as [IncomingMessage];
  assert.equal(String((await once(events, 'data'))[0]), 'data: 1\n\n');
  streams[0]?.write('data: 2\n\n');
  assert.equal(String((await once(events, 'data'))[0]), 'data: 2\n\n');
  streams[0]?.end();
  await once(events, 'end');

  for (const [path, headers] of [
    ['/ws', { 'x-service-preview-token': token }],
    [`/ws?rlp_token=${token}`, {}],
    ['/ws', { cookie: `rlp_preview=${token}` }],
  ] as const) {
    const socket = new WebSocket(`ws://127.0.0.1:${gateway.port}${path}`, {
      headers: { host: hostOf('private'), ...headers },
    });
    await once(socket, 'open');
    const message = randomBytes(300_000);
    socket.send(message);
    assert.deepEqual((await once(socket, 'message'))[0], message);
    socket.close();
    await once(socket, 'close');
    assert.equal(world.seen.at(-1)?.url, '/ws');
    assert.doesNotMatch(JSON.stringify(world.seen.at(-1)?.rawHeaders), new RegExp(token));
  }
  for (const sandbox of ['private', 'paused', 'unknown']) {
    const socket = new WebSocket(`ws://127.0.0.1:${gateway.port}/ws`, { headers: { host: hostOf(sandbox) } });
    const [error] = (await once(socket, 'error')) as [Error];
    assert.match(error.message, /40[149]/, sandbox);
  }
});

test('a revocation ends the responses and WebSockets that are open', async () => {
  world.serve = (_request, response) => void response.writeHead(200).write('begun');
  const request = http.get({
    host: '127.0.0.1',
    port: gateway.port,
    headers: { host: hostOf('revoked') },
    agent: false,
  });
  const [answer] = (await once(request, 'response')) as [IncomingMessage];
  await once(answer, 'data');
  const socket = new WebSocket(`ws://127.0.0.1:${gateway.port}/`, { headers: { host: hostOf('revoked') } });
  await once(socket, 'open');
  const closed = [once(socket, 'close'), new Promise((resolve) => answer.on('close', resolve))];
  answer.on('error', () => undefined).resume();
  world.control.push({ type: 'revoke', ids: world.control.asked.map(({ id }) => id), disconnect: true });
  await Promise.all(closed);
  assert.equal(answer.complete, false);
});

test('requests that two parsers may read in two ways are refused and do not reach the guest', async () => {
  const host = `host: ${hostOf('public')}\r\n`;
  for (const [what, text] of [
    ['two lengths', `POST / HTTP/1.1\r\n${host}content-length: 5\r\ncontent-length: 6\r\n\r\nhello!`],
    [
      'a length and chunks',
      `POST / HTTP/1.1\r\n${host}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n`,
    ],
    [
      'another coding',
      `POST / HTTP/1.1\r\n${host}connection: close\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n`,
    ],
    ['an obscured coding', `POST / HTTP/1.1\r\n${host}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n`],
    ['two hosts', `GET / HTTP/1.1\r\n${host}host: ${hostOf('private')}\r\nconnection: close\r\n\r\n`],
    [
      'another host in the target',
      `GET http://${hostOf('private')}/ HTTP/1.1\r\n${host}connection: close\r\n\r\n`,
    ],
    ['a folded header', `GET / HTTP/1.1\r\n${host}x: a\r\n b\r\nconnection: close\r\n\r\n`],
    ['a space before the colon', `GET / HTTP/1.1\r\n${host}transfer-encoding : chunked\r\n\r\n`],
    ['a line feed alone', `GET / HTTP/1.1\n${host.replace('\r', '')}x: y\n\n`],
    [
      'a bad chunk',
      `POST / HTTP/1.1\r\n${host}transfer-encoding: chunked\r\n\r\n5\r\nhelloGET /x HTTP/1.1\r\n\r\n`,
    ],
  ] as const) {
    const said = await raw(gateway.port, text);
    assert.match(said, /^HTTP\/1\.1 4\d\d /, `${what}: ${said.slice(0, 200)}`);
    assert.ok(
      world.seen.every(({ method, complete }) => method === 'POST' && !complete),
      `${what} reached the guest`,
    );
  }
});

test('a connection header does not make the gateway drop what it sets', async () => {
  const sent = { connection: 'close, x-forwarded-for, host, x-hop', 'x-hop': '1', 'x-end': '2' };
  await call({ path: '/hop', headers: sent });
  // A request that was cut off may reach the guest late.
  const { headers } = world.seen.find(({ url }) => url === '/hop') ?? assert.fail();
  assert.deepEqual(
    [headers['x-hop'], headers['x-end'], headers['x-forwarded-for']],
    [undefined, '2', '127.0.0.1'],
  );
  assert.equal(headers.host, hostOf('public'));
});

test('a guest that answers no HTTP, or ends early, is a 502 and leaves the gateway unharmed', async () => {
  world.serve = (request) => request.socket.end('nonsense\r\n\r\n');
  assert.equal((await call({})).status, 502);
  world.serve = (request) => void request.socket.destroy();
  assert.equal((await call({})).status, 502);
});

test('over TLS the cookie is Secure and for this host alone, the guest is told https, and another certificate leaves connections open', async () => {
  const authority = await testAuthority('previews');
  const newPair = async () => {
    const { key: pem, cert } = await authority.issue(`*.${DOMAIN}`);
    return { certificate: cert, key: pem };
  };
  const ca = authority.certificate;
  let served = await newPair();
  let announce = (): void => undefined;
  const secure = await world.gateway(undefined, {
    isTls: true,
    tls: {
      listen: { host: '127.0.0.1', port: 0 },
      load: async () => served,
      onChange: (listener) => {
        announce = listener;
        return () => undefined;
      },
    },
  });
  try {
    const place = {
      host: '127.0.0.1',
      port: secure.tls?.port ?? 0,
      ca,
      servername: hostOf('private'),
      agent: false,
    };
    const get = async (path: string, headers: http.OutgoingHttpHeaders): Promise<IncomingMessage> => {
      const request = https.get({ ...place, path, headers: { host: hostOf('private'), ...headers } });
      const [answer] = (await once(request, 'response')) as [IncomingMessage];
      answer.resume();
      return answer;
    };
    const signedIn = await get(`/?rlp_token=${token}`, { accept: 'text/html' });
    assert.equal(signedIn.headers.location, `https://${hostOf('private')}/`);
    const cookie = `__Host-rlp_preview=${token}`;
    assert.deepEqual(signedIn.headers['set-cookie'], [`${cookie}; Path=/; HttpOnly; SameSite=Lax; Secure`]);
    assert.equal((await get('/', { cookie: `rlp_preview=${token}` })).statusCode, 401);
    assert.equal((await get('/', { cookie })).statusCode, 200);
    assert.equal(world.seen.at(-1)?.headers['x-forwarded-proto'], 'https');
    assert.equal(world.seen.at(-1)?.headers['x-forwarded-for'], '127.0.0.1');

    const socket = new WebSocket(`wss://127.0.0.1:${secure.tls?.port}/ws`, {
      ca,
      headers: { host: hostOf('private'), cookie },
      // The name is that of the header, and not of the address.
      rejectUnauthorized: false,
    });
    await once(socket, 'open');
    socket.send('hello');
    assert.equal(String((await once(socket, 'message'))[0]), 'hello');

    const serial = async (): Promise<string | undefined> => {
      const { socket: used } = await get('/', { cookie });
      return (used as TLSSocket).getPeerCertificate().serialNumber;
    };
    const first = await serial();
    served = await newPair();
    announce();
    await eventually('the other certificate', async () => (await serial()) !== first);
    const second = await serial();
    served = { ...served, key: 'damaged' };
    announce();
    assert.equal(await serial(), second, 'what is not usable changes nothing');
    socket.send('still there');
    assert.equal(String((await once(socket, 'message'))[0]), 'still there');
    socket.close();
    await once(socket, 'close');
  } finally {
    await secure.close();
  }
});
