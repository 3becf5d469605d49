import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, beforeEach, test } from 'node:test';
import { newToken, newUuid } from '@releap/contract';
import { closedByServer } from '@releap/testing/half-open';
import pino from 'pino';
import { type Gateway, startGateway } from '../src/index.ts';
import { type FakeControl, startFakeControl } from './support/fake-control.ts';

const CREDENTIAL = 'the-credential-of-this-gateway';
const DATA_TOKEN = 'the-token-for-this-sandbox';
const key = newToken('apiKey');
const accessToken = newToken('sandbox');
const running = newUuid();
const paused = newUuid();

const stack = new AsyncDisposableStack();
const log = pino({ level: 'silent' });
let gateway: Gateway;
let base: string;
/** Another one with short deadlines. The first tolerates a machine that is busy with other work. */
let hasty: Gateway;
let control: FakeControl;
let dataUrl: string;
/** What the runner end does with a request. */
let onRunner: (request: IncomingMessage, response: ServerResponse) => void;
let seen: IncomingMessage[] = [];

before(async () => {
  const dir = await mkdtemp(join(tmpdir(), 'releap-gateway-'));
  stack.defer(() => rm(dir, { recursive: true, force: true }));
  const runner = http.createServer((request, response) => {
    seen.push(request);
    onRunner(request, response);
  });
  runner.on('upgrade', (request, socket, head: Buffer) => {
    seen.push(request);
    if (request.url?.endsWith('/no')) {
      socket.end(
        'HTTP/1.1 409 Conflict\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n{"error":"no"}',
      );
      return;
    }
    socket.write(
      'HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: yes\r\n\r\n',
    );
    if (request.url?.endsWith('/last-words')) {
      socket.end('x'.repeat(2_000_000));
      return;
    }
    socket.write(head);
    socket.pipe(socket);
  });
  const path = join(dir, 'runner.sock');
  runner.listen(path);
  await once(runner, 'listening');
  stack.defer(() => void runner.close());
  stack.defer(() => runner.closeAllConnections());
  dataUrl = `unix:${path}`;

  control = await startFakeControl(CREDENTIAL, DATA_TOKEN);
  stack.use(control);
  const start = (limits: NonNullable<Parameters<typeof startGateway>[0]['limits']>) =>
    startGateway({
      listen: { host: '127.0.0.1', port: 0 },
      controlUrl: control.url,
      credential: () => Promise.resolve(CREDENTIAL),
      log,
      limits: { bodyBytes: 4_000_000, headerBytes: 8_192, graceMs: 100, ...limits },
    });
  gateway = await start({});
  stack.defer(() => gateway.close());
  hasty = await start({ uploadIdleMs: 500, idleMs: 1_000 });
  stack.defer(() => hasty.close());
  base = `http://127.0.0.1:${gateway.port}`;
});
after(() => stack.disposeAsync());
beforeEach(() => {
  control.asked = [];
  control.decide = ({ target: { sandbox }, token }) => {
    if (token !== key && token !== accessToken) return { status: 401, error: 'invalid credentials' };
    if (sandbox === running) return { vm_id: running, data_url: dataUrl };
    if (sandbox === paused)
      return { status: 409, error: `sandbox "${paused}" is paused, and must be running` };
    return { status: 404, error: `sandbox "${sandbox}" not found` };
  };
  seen = [];
  onRunner = (request, response) => {
    response.setHeader('content-type', 'text/plain');
    request.pipe(response);
  };
});

async function call(path: string, init: RequestInit & { duplex?: 'half' } = {}, token: string | null = key) {
  const headers = new Headers(init.headers);
  if (token !== null) headers.set('authorization', `Bearer ${token}`);
  const response = await fetch(`${base}${path}`, { ...init, headers });
  return { status: response.status, headers: response.headers, text: await response.text() };
}

function errorOf(text: string): string {
  return (JSON.parse(text) as { error: string }).error;
}

/** Bytes on a connection of their own, and all that comes back until it closes. */
async function raw(text: string, { port } = gateway): Promise<string> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => {});
  socket.write(text);
  let said = '';
  socket.on('data', (chunk) => (said += String(chunk)));
  await once(socket, 'close');
  return said;
}

test('a request reaches the runner under its own path, with the token for its sandbox and no credential of the client', async () => {
  const answer = await call(`/toolbox/${running}/files/upload?path=%2Fa%20b`, {
    method: 'POST',
    body: 'content',
    headers: { cookie: 'session=1', 'x-forwarded-for': '1.2.3.4', 'x-kept': 'yes', 'x-api-key': 'k' },
  });
  assert.deepEqual([answer.status, answer.text], [200, 'content']);
  const [request] = seen;
  assert.equal(request?.url, `/vms/${running}/toolbox/files/upload?path=%2Fa%20b`);
  assert.equal(request?.headers.authorization, `Bearer ${DATA_TOKEN}`);
  assert.equal(request?.headers['x-kept'], 'yes');
  for (const name of ['cookie', 'x-forwarded-for', 'x-api-key'])
    assert.equal(request?.headers[name], undefined);
  assert.ok(!JSON.stringify(request?.rawHeaders).includes(key));
});

test('the access token of the sandbox opens it as well', async () => {
  assert.equal((await call(`/toolbox/${running}/x`, {}, accessToken)).status, 200);
});

test('headers of one connection stay on it, in both directions', async () => {
  onRunner = (_request, response) => {
    response.writeHead(200, { connection: 'x-hop', 'x-hop': '1', 'set-cookie': 'a=b', 'x-end': '1' });
    response.end('ok');
  };
  const said = await raw(
    `GET /toolbox/${running}/x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${key}\r\nConnection: close, X-Secret\r\nX-Secret: 1\r\nTE: trailers\r\nKeep-Alive: 5\r\n\r\n`,
  );
  assert.match(said, /^HTTP\/1\.1 200 OK\r\n/);
  assert.match(said, /x-end: 1/i);
  assert.doesNotMatch(said, /x-hop|set-cookie/i);
  for (const name of ['x-secret', 'te', 'keep-alive']) assert.equal(seen[0]?.headers[name], undefined);
});

test('without a credential of this service the answer is 401, and control is not asked', async () => {
  for (const token of [null, 'nonsense', newToken('function'), `${key}x`]) {
    const answer = await call(`/toolbox/${running}/x`, {}, token);
    assert.equal(answer.status, 401);
    assert.equal(answer.headers.get('www-authenticate'), 'Bearer');
    assert.match(errorOf(answer.text), /credentials/);
  }
  assert.deepEqual(control.asked, []);
});

test('a refusal of the control plane is passed on with its message', async () => {
  const unknown = await call(`/toolbox/${newUuid()}/x`);
  assert.equal(unknown.status, 404);
  assert.match(errorOf(unknown.text), /^sandbox .* not found$/);
  assert.equal((await call(`/toolbox/${running}/x`, {}, newToken('apiKey'))).status, 401);
  const stopped = await call(`/toolbox/${paused}/x`);
  assert.equal(stopped.status, 409);
  assert.match(errorOf(stopped.text), /is paused, and must be running/);
  assert.equal(seen.length, 0);
});

test('invalid paths, and those that could lead elsewhere, are refused', async () => {
  for (const path of ['/', '/other', '/toolbox/', `/toolbox/${running}`, `/toolbox/${running}/`]) {
    assert.equal((await call(path)).status, 404, path);
  }
  for (const tail of ['../x', 'a/%2e%2e/b', '%2E/x', 'a%2fb', 'a%5cb', '%zz', 'a%00b']) {
    const said = await raw(
      `GET /toolbox/${running}/${tail} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${key}\r\nConnection: close\r\n\r\n`,
    );
    assert.match(said, /^HTTP\/1\.1 400 /, tail);
  }
  assert.equal(seen.length, 0);
});

test('concurrent requests share one resolve, and a refusal is not cached', async () => {
  const token = newToken('apiKey');
  const one = `GET /toolbox/${running}/x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${token}\r\n`;
  // In one piece: all of them are there before any can be answered.
  const said = await raw(`${`${one}\r\n`.repeat(19)}${one}Connection: close\r\n\r\n`);
  assert.equal(said.match(/HTTP\/1\.1 401 /g)?.length, 20);
  assert.equal(control.asked.length, 1);
  // A refusal is not cached.
  await call(`/toolbox/${running}/x`, {}, token);
  assert.equal(control.asked.length, 2);
});

test('a large upload and a large download pass unchanged', async () => {
  const body = randomBytes(3_000_000);
  const response = await fetch(`${base}/toolbox/${running}/x`, {
    method: 'POST',
    body,
    headers: { authorization: `Bearer ${key}` },
  });
  assert.equal(seen[0]?.headers['content-length'], '3000000');
  assert.ok(Buffer.from(await response.arrayBuffer()).equals(body));
  const init: RequestInit & { duplex: 'half' } = {
    method: 'POST',
    body: new Blob([body]).stream(),
    duplex: 'half',
    headers: { authorization: `Bearer ${key}` },
  };
  const chunked = await fetch(`${base}/toolbox/${running}/x`, init);
  assert.equal(seen[1]?.headers['transfer-encoding'], 'chunked');
  assert.ok(Buffer.from(await chunked.arrayBuffer()).equals(body));
});

test('a reader that stops reading stops the runner from sending', async () => {
  let sent = 0;
  const ended = Promise.withResolvers<void>();
  onRunner = (_request, response) => {
    response.once('close', () => ended.resolve());
    const more = () => {
      let room = true;
      while (room && sent < 200_000_000) {
        sent += 65_536;
        room = response.write(Buffer.alloc(65_536));
      }
      if (room) response.end();
      else response.once('drain', more);
    };
    more();
  };
  const request = http.get(`http://127.0.0.1:${hasty.port}/toolbox/${running}/x`, {
    headers: { authorization: `Bearer ${key}` },
  });
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  response.pause();
  response.on('error', () => {});
  // The gateway disconnects a reader that stays stuck, and the runner is told.
  await ended.promise;
  assert.ok(sent < 50_000_000, `${sent} bytes were taken`);
  request.destroy();
});

test('a body that is too long or stalls is refused', async () => {
  const told = await call(`/toolbox/${running}/x`, { method: 'POST', body: Buffer.alloc(4_000_001) }).catch(
    () => null,
  );
  if (told !== null) assert.match(errorOf(told.text), /larger than 4000000 bytes/);
  const head = `POST /toolbox/${running}/x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${key}\r\n`;
  onRunner = (request) => void request.resume();
  assert.match(
    await raw(`${head}Content-Length: 10\r\n\r\nabc`, hasty),
    /400 .*nothing of the request body arrived/s,
  );
});

test('a client that sends Expect: 100-continue gets the refusal instead of the 100', async () => {
  const expect = 'Expect: 100-continue\r\nContent-Length: 3\r\n';
  const head = `POST /toolbox/${running}/x HTTP/1.1\r\nHost: a\r\n${expect}`;
  const refused = await raw(`${head}Authorization: Bearer ${newToken('apiKey')}\r\n\r\n`);
  assert.match(refused, /^HTTP\/1\.1 401 /);
  const allowed = await raw(`${head}Connection: close\r\nAuthorization: Bearer ${key}\r\n\r\nabc`);
  assert.match(allowed, /^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 200 OK/);
});

test('requests that two servers could read differently are refused', async () => {
  const head = `POST /toolbox/${running}/x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${key}\r\n`;
  for (const framing of [
    'Content-Length: 3\r\nContent-Length: 4\r\n',
    'Content-Length: 3\r\nTransfer-Encoding: chunked\r\n',
    'Transfer-Encoding: xchunked\r\n',
    'Transfer-Encoding: chunked, identity\r\n',
    'Content-Length: +3\r\n',
    'Content-Length : 3\r\n',
  ]) {
    assert.match(await raw(`${head}${framing}\r\nabc`), /^HTTP\/1\.1 400 /, framing);
  }
  assert.match(await raw(`${head}X: ${'a'.repeat(9_000)}\r\n\r\n`), /^HTTP\/1\.1 431 /);
  assert.match(await raw('nonsense\r\n\r\n'), /^HTTP\/1\.1 400 .*"malformed HTTP request"/s);
  assert.equal(seen.length, 0);
});

test('a runner that is not there, dies or refuses us is a 502', async () => {
  onRunner = (request) => void request.socket.destroy();
  const died = await call(`/toolbox/${running}/x`);
  assert.equal(died.status, 502);
  assert.match(errorOf(died.text), /did not answer/);
  onRunner = (_request, response) => void response.writeHead(401).end('{"error":"internal token only"}');
  assert.equal((await call(`/toolbox/${running}/x`)).status, 502);
  const other = newToken('sandbox');
  control.decide = () => ({ vm_id: running, data_url: `${dataUrl}.gone` });
  assert.equal((await call(`/toolbox/${running}/x`, {}, other)).status, 502);
});

test('a response that ends in the middle ends for the client too', async () => {
  onRunner = (request, response) => {
    response.writeHead(200, { 'content-length': '100' });
    response.write('half', () => request.socket.destroy());
  };
  await assert.rejects(call(`/toolbox/${running}/x`));
});

test('a client that goes away ends its request at the runner', async () => {
  const closed = Promise.withResolvers<void>();
  const arrived = Promise.withResolvers<void>();
  onRunner = (_request, response) => {
    response.once('close', () => closed.resolve());
    arrived.resolve();
  };
  const request = http.get(`${base}/toolbox/${running}/x`, { headers: { authorization: `Bearer ${key}` } });
  request.on('error', () => {});
  await arrived.promise;
  request.destroy();
  await closed.promise;
});

const handshake = (tail: string, token = key) =>
  `GET /toolbox/${running}/${tail} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${token}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: abc\r\nSec-WebSocket-Version: 13\r\n\r\n`;

test('a WebSocket is tunnelled both ways, without the credential of the client', async () => {
  const socket = connect(gateway.port, '127.0.0.1');
  let said = '';
  socket.on('data', (chunk) => (said += String(chunk)));
  socket.write(`${handshake('process/stream')}early`);
  while (!said.includes('early')) await once(socket, 'data');
  assert.match(said, /^HTTP\/1\.1 101 Switching Protocols\r\n[^]*sec-websocket-accept: yes/);
  const body = 'x'.repeat(500_000);
  socket.write(body);
  while (!said.endsWith(`early${body}`)) await once(socket, 'data');
  assert.equal(seen[0]?.headers.authorization, `Bearer ${DATA_TOKEN}`);
  assert.equal(seen[0]?.headers['sec-websocket-key'], 'abc');
  assert.equal(seen[0]?.url, `/vms/${running}/toolbox/process/stream`);
  const ended = once(seen[0]?.socket ?? assert.fail(), 'close');
  socket.destroy();
  await ended;
});

test('data that a runner sent before it closed a tunnel still arrives', async () => {
  const said = await raw(handshake('last-words'));
  assert.equal(said.slice(said.indexOf('\r\n\r\n') + 4).length, 2_000_000);
});

test('a WebSocket that is refused gets the refusal', async () => {
  assert.match(await raw(handshake('x', newToken('apiKey'))), /^HTTP\/1\.1 401 [^]*{"error":/);
  assert.match(await raw(handshake('no')), /^HTTP\/1\.1 409 Conflict[^]*{"error":"no"}$/);
  assert.match(await raw(handshake('../x')), /^HTTP\/1\.1 400 /);
});

test('a WebSocket that is refused is given up, though its client keeps its end open', async () => {
  assert.match(await closedByServer(gateway.port, handshake('x', newToken('apiKey'))), /^HTTP\/1\.1 401 /);
  assert.match(await closedByServer(gateway.port, handshake('no')), /^HTTP\/1\.1 409 /);
});

test('an upgrade to something else is ignored', async () => {
  const answer = await raw(
    `GET /toolbox/${running}/x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${key}\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n`,
  );
  assert.match(answer, /^HTTP\/1\.1 200 OK/);
});

test('GET /healthz answers 200', async () => {
  assert.deepEqual((await call('/healthz', {}, null)).status, 200);
});

test('without a control plane the answer is 503, and closing ends what is under way', async () => {
  const alone = await startGateway({
    listen: { host: '127.0.0.1', port: 0 },
    controlUrl: 'unix:/nonexistent/control.sock',
    credential: () => Promise.resolve(CREDENTIAL),
    log,
    limits: { decisionMs: 500 },
  });
  const response = await fetch(`http://127.0.0.1:${alone.port}/toolbox/${running}/x`, {
    headers: { authorization: `Bearer ${key}` },
  });
  assert.equal(response.status, 503);
  assert.match(errorOf(await response.text()), /control plane/);
  await alone.close();
  await assert.rejects(
    startGateway({
      listen: { host: '127.0.0.1', port: 0 },
      controlUrl: 'ftp://x',
      credential: () => Promise.resolve(''),
      log,
    }),
    /must be http/,
  );
});

test('a request id goes through to the runner and back to the client', async () => {
  const path = `/toolbox/${running}/files/list`;
  const own = await call(path, { headers: { 'x-request-id': 'abc-1' } });
  assert.equal(own.headers.get('x-request-id'), 'abc-1');
  assert.equal(seen.at(-1)?.headers['x-request-id'], 'abc-1');

  for (const harmful of ['<b>', 'a'.repeat(101), 'two words']) {
    const other = await call(path, { headers: { 'x-request-id': harmful } });
    const id = other.headers.get('x-request-id') ?? '';
    assert.match(id, /^[A-Za-z0-9._-]{1,100}$/);
    assert.notEqual(id, harmful);
    assert.equal(seen.at(-1)?.headers['x-request-id'], id);
  }
  assert.ok((await call(path)).headers.get('x-request-id'));

  // A refusal has one too, and the runner's own answer does not replace it.
  const refused = await call(`/toolbox/${paused}/files/list`, { headers: { 'x-request-id': 'abc-2' } });
  assert.deepEqual([refused.status, refused.headers.get('x-request-id')], [409, 'abc-2']);
  onRunner = (_request, response) => {
    response.setHeader('x-request-id', 'of-the-runner');
    response.end();
  };
  const answered = await call(path, { headers: { 'x-request-id': 'abc-3' } });
  assert.equal(answered.headers.get('x-request-id'), 'abc-3');
});

test('a WebSocket handshake has a request id, accepted or refused', async () => {
  const upgrade = (operation: string) =>
    new Promise<IncomingMessage>((resolve, reject) => {
      const request = http.request(`${base}/toolbox/${running}/${operation}`, {
        headers: {
          authorization: `Bearer ${key}`,
          connection: 'Upgrade',
          upgrade: 'websocket',
          'x-request-id': 'abc-4',
        },
      });
      request.on('upgrade', (answer, socket) => {
        socket.destroy();
        resolve(answer);
      });
      request.on('response', (answer) => {
        answer.resume();
        resolve(answer);
      });
      request.on('error', reject);
      request.end();
    });
  for (const [operation, status] of [
    ['stream', 101],
    ['no', 409],
  ] as const) {
    const answer = await upgrade(operation);
    assert.equal(answer.statusCode, status);
    assert.equal(answer.headers['x-request-id'], 'abc-4');
    assert.equal(seen.at(-1)?.headers['x-request-id'], 'abc-4');
  }
});

test('the log line of a failed request has its id', async () => {
  const lines: Record<string, unknown>[] = [];
  const logged = await startGateway({
    listen: { host: '127.0.0.1', port: 0 },
    controlUrl: control.url,
    credential: () => Promise.resolve(CREDENTIAL),
    log: pino({ level: 'warn' }, { write: (line: string) => void lines.push(JSON.parse(line)) }),
  });
  try {
    onRunner = (request) => request.socket.destroy();
    const response = await fetch(`http://127.0.0.1:${logged.port}/toolbox/${running}/files/list`, {
      headers: { authorization: `Bearer ${key}`, 'x-request-id': 'abc-5' },
    });
    await response.text();
    assert.equal(response.status, 502);
    assert.ok(lines.some(({ reqId, status }) => reqId === 'abc-5' && status === 502));
  } finally {
    await logged.close();
  }
});
