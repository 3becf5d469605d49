/** WebSockets and other upgrades through the gateway. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { test } from 'node:test';
import { newToken } from '@releap/contract';
import { closedByServer } from '@releap/testing/half-open';
import { DATA_TOKEN, gateway, key, raw, running, seen } from '../support/gateway-world.ts';

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
