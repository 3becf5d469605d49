/** Requests through the gateway, and refusals. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import http, { type IncomingMessage } from 'node:http';
import { test } from 'node:test';
import { newToken, newUuid } from '@releap/contract';
import { startGateway } from '../../src/index.ts';
import {
  CREDENTIAL,
  DATA_TOKEN,
  accessToken,
  base,
  call,
  control,
  dataUrl,
  errorOf,
  hasty,
  key,
  log,
  paused,
  raw,
  runnerEnd,
  running,
  seen,
} from '../support/gateway-world.ts';

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

test('an idle connection is kept longer than load balancers and clients keep it', async () => {
  const { headers } = await call(`/toolbox/${running}/x`);
  assert.equal(headers.get('keep-alive'), 'timeout=75');
});

test('the access token of the sandbox opens it as well', async () => {
  assert.equal((await call(`/toolbox/${running}/x`, {}, accessToken)).status, 200);
});

test('headers of one connection stay on it, in both directions', async () => {
  runnerEnd.onRequest = (_request, response) => {
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
  runnerEnd.onRequest = (_request, response) => {
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
  runnerEnd.onRequest = (request) => void request.resume();
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

test('a runner that dies or refuses us is a 502, and one that does not run a 503', async () => {
  runnerEnd.onRequest = (request) => void request.socket.destroy();
  const died = await call(`/toolbox/${running}/x`);
  assert.equal(died.status, 502);
  assert.match(errorOf(died.text), /did not answer/);
  runnerEnd.onRequest = (_request, response) =>
    void response.writeHead(401).end('{"error":"internal token only"}');
  assert.equal((await call(`/toolbox/${running}/x`)).status, 502);
  const other = newToken('sandbox');
  control.decide = () => ({ vm_id: running, data_url: `${dataUrl}.gone` });
  const absent = await call(`/toolbox/${running}/x`, {}, other);
  assert.equal(absent.status, 503);
  assert.match(absent.headers.get('retry-after') ?? '', /^[1-9]/);
  assert.match(errorOf(absent.text), /is not running at the moment/);
});

test('a response that ends in the middle ends for the client too', async () => {
  runnerEnd.onRequest = (request, response) => {
    response.writeHead(200, { 'content-length': '100' });
    response.write('half', () => request.socket.destroy());
  };
  await assert.rejects(call(`/toolbox/${running}/x`));
});

test('a client that goes away ends its request at the runner', async () => {
  const closed = Promise.withResolvers<void>();
  const arrived = Promise.withResolvers<void>();
  runnerEnd.onRequest = (_request, response) => {
    response.once('close', () => closed.resolve());
    arrived.resolve();
  };
  const request = http.get(`${base}/toolbox/${running}/x`, { headers: { authorization: `Bearer ${key}` } });
  request.on('error', () => {});
  await arrived.promise;
  request.destroy();
  await closed.promise;
});

test('GET /healthz, /livez and /readyz answer 200', async () => {
  for (const path of ['/healthz', '/livez', '/readyz'])
    assert.deepEqual((await call(path, {}, null)).status, 200, path);
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
  const probe = async (path: string) => (await fetch(`http://127.0.0.1:${alone.port}${path}`)).status;
  assert.deepEqual([await probe('/livez'), await probe('/healthz'), await probe('/readyz')], [200, 200, 503]);
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
