/** Requests without an answer, and those that must not pass. */
import assert from 'node:assert/strict';
import { sharedText } from '@releap/testing/callers';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import http, { type IncomingMessage } from 'node:http';
import { test } from 'node:test';
import { freePort } from '@releap/testing/ports';
import { DOMAIN, key } from '../support/preview-world.ts';
import { ENGINE, world, ports, call, withToken, route } from '../support/engine-world.ts';
import { raw } from '../support/preview-world.ts';

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
    const [withEngine, without] = answers.map(({ body }) => sharedText({ text: body.toString() }));
    assert.equal(without, withEngine);
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
    const { error, code } = JSON.parse(answer.body.toString()) as { error: string; code: string };
    assert.deepEqual([error, code], [`nothing listens on port ${port} of the sandbox`, 'bad_gateway']);
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
        const { error, code } = JSON.parse(answer.body.toString()) as { error: string; code: string };
        assert.deepEqual(
          [answer.status, error, code],
          [502, `the server at port ${world.port} of the sandbox did not answer`, 'bad_gateway'],
          `${name} ${method}`,
        );
      }
  }
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
