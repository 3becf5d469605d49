/** HTTP/2 towards the domains of secrets, for a server that speaks nothing else. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import {
  constants,
  type ClientHttp2Session,
  type ClientHttp2Stream,
  type IncomingHttpHeaders,
  type OutgoingHttpHeaders,
} from 'node:http2';
import { after, before, beforeEach, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { HOST, startInterceptor, VM, type Interceptor } from './support/intercepted.ts';

const TOKEN = `rlps_${'T0kn'.repeat(11).slice(0, 43)}`;
const VALUE = 'sk_live_"4d7a/c1f0+';

let world: Interceptor;
let session: ClientHttp2Session;
/** What the server received. */
const received: { headers: IncomingHttpHeaders; body: string }[] = [];

before(async () => {
  world = await startInterceptor();
});
after(async () => {
  session?.destroy();
  await world[Symbol.asyncDispose]();
});
beforeEach(async () => {
  received.length = 0;
  session?.destroy();
  world.put({
    value: VALUE,
    allowed_domains: [HOST],
    placeholders: [createHash('sha256').update(TOKEN).digest('hex')],
    placeholder: TOKEN,
  });
  world.state.onStream = (stream, headers) => {
    let body = '';
    stream.setEncoding('latin1').on('data', (chunk) => (body += String(chunk)));
    stream.on('end', () => {
      received.push({ headers, body });
      stream.respond({ ':status': 200, 'x-echo': VALUE, 'set-cookie': ['a=1', 'b=2'] });
      stream.write(`<${VALUE.slice(0, 5)}`);
      stream.end(`${VALUE.slice(5)}>`);
    });
  };
  session = await world.openHttp2();
});

interface Reply {
  headers: IncomingHttpHeaders;
  trailers: IncomingHttpHeaders;
  body: string;
}

async function reply(stream: ClientHttp2Stream): Promise<Reply> {
  const [headers] = (await once(stream, 'response')) as [IncomingHttpHeaders];
  let trailers: IncomingHttpHeaders = {};
  stream.on('trailers', (all) => (trailers = all));
  const chunks: Buffer[] = [];
  for await (const chunk of stream) chunks.push(chunk as Buffer);
  return { headers, trailers, body: Buffer.concat(chunks).toString('latin1') };
}

async function call(headers: OutgoingHttpHeaders, body?: string | Buffer): Promise<Reply> {
  const stream = session.request({ ':authority': HOST, ...headers }, { endStream: body === undefined });
  if (body !== undefined) stream.end(body);
  return await reply(stream);
}

test('placeholders are replaced in fields, path and bodies, and values in responses', async () => {
  const json = { ':method': 'POST', 'content-type': 'application/json' };
  const body = `{"a":"${TOKEN}"}`;
  const first = await call(
    { ...json, ':path': `/x?key=${TOKEN}`, authorization: `Bearer ${TOKEN}`, 'content-length': body.length },
    body,
  );
  assert.equal(first.headers[':status'], 200);
  assert.equal(first.headers['x-echo'], TOKEN);
  assert.deepEqual(first.headers['set-cookie'], ['a=1', 'b=2']);
  assert.equal(first.body, `<${TOKEN}>`);
  // Without a length, and without a body.
  await call({ ...json, ':path': '/' }, body);
  await call({ ':path': `/${TOKEN}`, cookie: [`a=${TOKEN}`, 'b=2'] });
  const filled = `{"a":${JSON.stringify(VALUE)}}`;
  assert.deepEqual(
    received.map(({ headers, body: got }) => [headers[':path'], got]),
    [
      [`/x?key=${encodeURIComponent(VALUE)}`, filled],
      ['/', filled],
      ['/sk_live_%224d7a/c1f0+', ''],
    ],
  );
  assert.equal(received[0]?.headers.authorization, `Bearer ${VALUE}`);
  assert.equal(received[0].headers['content-length'], String(filled.length));
  assert.equal(received[0].headers[':authority'], HOST);
  assert.match(String(received[2]?.headers.cookie), new RegExp(`a=${VALUE.replace('+', '\\+')}`));
  assert.equal(world.state.connections, 1);
});

test('a call of gRPC: both sides stream at once, messages keep their lengths, and trailers arrive', async () => {
  world.state.onStream = (stream, headers) => {
    received.push({ headers, body: '' });
    stream.respond({ ':status': 200, 'content-type': 'application/grpc' }, { waitForTrailers: true });
    stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0', 'grpc-message': VALUE }));
    stream.pipe(stream);
  };
  const stream = session.request({
    ':authority': HOST,
    ':method': 'POST',
    ':path': '/service/Method',
    'content-type': 'application/grpc',
    te: 'trailers',
    authorization: `Bearer ${TOKEN}`,
  });
  stream.write(TOKEN);
  const answered = once(stream, 'response');
  await answered;
  // The answer to the first message comes before the second is sent.
  const [echo] = (await once(stream, 'data')) as [Buffer];
  assert.equal(echo.toString(), TOKEN);
  let trailers: IncomingHttpHeaders = {};
  stream.on('trailers', (all) => (trailers = all));
  let rest = '';
  stream.on('data', (chunk: Buffer) => (rest += chunk.toString()));
  stream.end(VALUE);
  await once(stream, 'close');
  // A value is cut or padded to its own length.
  assert.equal(rest, TOKEN.slice(0, VALUE.length));
  assert.deepEqual([trailers['grpc-status'], trailers['grpc-message']], ['0', TOKEN]);
  assert.equal(received[0]?.headers.te, 'trailers');
  assert.equal(received[0].headers.authorization, `Bearer ${VALUE}`);
});

test('compressed responses are opened; a response without a body, and an error of the server, arrive', async () => {
  world.state.onStream = (stream, { ':path': path }) => {
    if (path === '/reset') return stream.close(constants.NGHTTP2_ENHANCE_YOUR_CALM);
    if (path === '/empty') return stream.respond({ ':status': 204 }, { endStream: true });
    const body = gzipSync(VALUE);
    stream.respond({ ':status': 200, 'content-encoding': 'gzip', 'content-length': body.length });
    stream.end(body);
  };
  const opened = await call({ ':path': '/' });
  assert.deepEqual([opened.body, opened.headers['content-encoding']], [TOKEN, undefined]);
  assert.equal((await call({ ':path': '/empty' })).headers[':status'], 204);
  const failed = await call({ ':path': '/reset' });
  assert.equal(failed.headers[':status'], 502);
  assert.match(failed.body, /^releap: the connection to api\.example\.com failed/);
});

test('large bodies pass in both directions, beside each other', async () => {
  world.state.onStream = (stream) => {
    stream.respond({ ':status': 200 });
    stream.pipe(stream);
  };
  const body = randomBytes(3_000_000);
  const answers = await Promise.all([1, 2, 3].map((n) => call({ ':method': 'PUT', ':path': `/${n}` }, body)));
  for (const answer of answers) assert.ok(answer.body === body.toString('latin1'));
});

test('requests for another host and tunnels are refused, and nothing is sent on', async () => {
  // What is malformed for HTTP/2 itself is reset.
  const status = (headers: OutgoingHttpHeaders): Promise<string> =>
    call({ ':path': '/', 'x-key': TOKEN, ...headers }).then(
      (answer) => String(answer.headers[':status']),
      (error: unknown) => String(error),
    );
  assert.equal(await status({ ':authority': 'evil.example' }), '421');
  assert.equal(await status({ ':method': 'TRACE' }), '405');
  assert.match(await status({ host: 'evil.example' }), /^4\d\d$|PROTOCOL_ERROR/);
  assert.match(await status({ ':authority': `user@${HOST}` }), /^4\d\d$|PROTOCOL_ERROR/);
  const tunnel = session.request({ ':method': 'CONNECT', ':authority': 'evil.example:443' });
  const answered = await reply(tunnel).then(
    ({ headers }) => headers[':status'],
    (error: unknown) => String(error),
  );
  assert.match(String(answered), /^4\d\d$|PROTOCOL_ERROR/);
  assert.deepEqual(received, []);
});

test('a client of HTTP/2 alone fails in the handshake where its server does not speak it', async () => {
  await assert.rejects(world.open(true, HOST, {}, ['h2']), /no application protocol/i);
  assert.deepEqual(received, []);
});

test('a client that gives up ends the request at the server, and the sandbox’s end ends all', async () => {
  const begun = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<number>();
  world.state.onStream = (stream) => {
    stream.on('error', () => undefined);
    stream.on('close', () => ended.resolve(stream.rstCode));
    stream.respond({ ':status': 200 });
    stream.write('x');
    begun.resolve();
  };
  const stream = session.request({ ':authority': HOST, ':path': '/' });
  stream.on('error', () => undefined);
  await begun.promise;
  await once(stream, 'data');
  stream.close(constants.NGHTTP2_CANCEL);
  assert.equal(await ended.promise, constants.NGHTTP2_CANCEL);
  const closed = once(session, 'close');
  world.proxy.remove(VM);
  await closed;
});
