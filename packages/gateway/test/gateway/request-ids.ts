/** Ids of requests, from the client to the runner and the log. */
import assert from 'node:assert/strict';
import http, { type IncomingMessage } from 'node:http';
import { test } from 'node:test';
import pino from 'pino';
import { startGateway } from '../../src/index.ts';
import {
  CREDENTIAL,
  base,
  call,
  control,
  key,
  paused,
  runnerEnd,
  running,
  seen,
} from '../support/gateway-world.ts';

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
  runnerEnd.onRequest = (_request, response) => {
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
    runnerEnd.onRequest = (request) => request.socket.destroy();
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
