/** Two gateways with a fake control plane and a fake runner; started before the tests of the file that imports it. */
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, beforeEach } from 'node:test';
import { newToken, newUuid } from '@releap/contract';
import pino from 'pino';
import { type Gateway, startGateway } from '../../src/index.ts';
import { type FakeControl, startFakeControl } from './fake-control.ts';

export const CREDENTIAL = 'the-credential-of-this-gateway';
export const DATA_TOKEN = 'the-token-for-this-sandbox';
export const key = newToken('apiKey');
export const accessToken = newToken('sandbox');
export const running = newUuid();
export const paused = newUuid();

const stack = new AsyncDisposableStack();
export const log = pino({ level: 'silent' });
export let gateway: Gateway;
export let base: string;
/** Another one with short deadlines. The first tolerates a machine that is busy with other work. */
export let hasty: Gateway;
export let control: FakeControl;
export let dataUrl: string;
/** What the runner end does with a request; each test may replace it. */
export const runnerEnd: { onRequest: (request: IncomingMessage, response: ServerResponse) => void } = {
  onRequest: (_request, response) => response.end(),
};
export let seen: IncomingMessage[] = [];

before(async () => {
  const dir = await mkdtemp(join(tmpdir(), 'releap-gateway-'));
  stack.defer(() => rm(dir, { recursive: true, force: true }));
  const runner = http.createServer((request, response) => {
    seen.push(request);
    runnerEnd.onRequest(request, response);
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
  runnerEnd.onRequest = (request, response) => {
    response.setHeader('content-type', 'text/plain');
    request.pipe(response);
  };
});

export async function call(
  path: string,
  init: RequestInit & { duplex?: 'half' } = {},
  token: string | null = key,
) {
  const headers = new Headers(init.headers);
  if (token !== null) headers.set('authorization', `Bearer ${token}`);
  const response = await fetch(`${base}${path}`, { ...init, headers });
  return { status: response.status, headers: response.headers, text: await response.text() };
}

export function errorOf(text: string): string {
  return (JSON.parse(text) as { error: string }).error;
}

/** Bytes on a connection of their own, and all that comes back until it closes. */
export async function raw(text: string, { port } = gateway): Promise<string> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => {});
  socket.write(text);
  let said = '';
  socket.on('data', (chunk) => (said += String(chunk)));
  await once(socket, 'close');
  return said;
}
