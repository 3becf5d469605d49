/** Decisions that are pushed: spec, Port exposure (visibility "effective within about 1 s") and Authentication rule 5. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import http, { type IncomingMessage } from 'node:http';
import { connect, type AddressInfo, type Socket } from 'node:net';
import { after, before, beforeEach, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { DataHosts, plainPeer } from '@releap/certificates/hosts';
import { GATEWAY_GRANTS_MAX, GATEWAY_SILENT_MS, newToken, newUuid } from '@releap/contract';
import { until } from '@releap/testing/eventually';
import pino from 'pino';
import { Grants } from '../src/control/grants.ts';
import { type Gateway, headerPolicy, startGateway, type TargetKind } from '../src/index.ts';
import { type FakeControl, startFakeControl } from './support/fake-control.ts';

const key = newToken('apiKey');
const stack = new AsyncDisposableStack();
let control: FakeControl;
let gateway: Gateway;
let dataUrl: string;
let seen: IncomingMessage[] = [];
let sandbox: string;

/** A second kind beside the toolbox: routed by Host, with cookies let through, and its own credential. */
const site: TargetKind = {
  kind: 'site',
  route({ url, headers }) {
    const name = /^(\w+)\.site\.test$/.exec(headers.host ?? '')?.[1];
    if (name === undefined) return undefined;
    const token = headers['x-site-token'];
    return {
      target: { kind: 'site', sandbox: name },
      token: typeof token === 'string' ? token : null,
      upstreamPath: () => url,
      headers: headerPolicy({ request: ['x-site-token', 'authorization'], response: [] }),
    };
  },
};

before(async () => {
  const runner = http.createServer((request, response) => {
    seen.push(request);
    if (request.url?.includes('/endless') === true) response.write('begin');
    else response.writeHead(200, { 'set-cookie': 'a=b' }).end('ok');
  });
  runner.on('upgrade', (request: IncomingMessage, socket: Socket) => {
    seen.push(request);
    socket.on('error', () => undefined);
    socket.write('HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n');
    socket.pipe(socket);
  });
  runner.listen(0, '127.0.0.1');
  await once(runner, 'listening');
  stack.defer(() => void runner.close());
  stack.defer(() => runner.closeAllConnections());
  dataUrl = `http://127.0.0.1:${(runner.address() as AddressInfo).port}`;
  control = await startFakeControl('gateway-credential', 'data-token');
  stack.use(control);
  const { toolbox } = await import('../src/targets/toolbox.ts');
  gateway = await startGateway({
    listen: { host: '127.0.0.1', port: 0 },
    controlUrl: control.url,
    credential: () => Promise.resolve('gateway-credential'),
    kinds: [site, toolbox],
    log: pino({ level: 'silent' }),
  });
  stack.defer(() => gateway.close());
});
after(() => stack.disposeAsync());
beforeEach(() => {
  seen = [];
  sandbox = newUuid();
  control.asked = [];
  control.talking = true;
  control.decide = () => ({ vm_id: sandbox, data_url: dataUrl });
});

const get = async (): Promise<number> => {
  const response = await fetch(`http://127.0.0.1:${gateway.port}/toolbox/${sandbox}/x`, {
    headers: { authorization: `Bearer ${key}` },
  });
  await response.text();
  return response.status;
};

/** The grants of a gateway with one kind, whose connection a test breaks or watches. */
function grantsOf(controlUrl: string, kind: 'toolbox' | 'site'): Grants {
  return new Grants({
    hosts: new DataHosts(),
    control: plainPeer(controlUrl),
    credential: () => Promise.resolve('gateway-credential'),
    kinds: [kind],
    decisionMs: 60_000,
    log: pino({ level: 'silent' }),
  });
}

test('a decision is asked for once and then held, until control revokes it', async () => {
  // A gateway that has heard nothing for a moment, as on a busy machine, asks once more.
  await until(async () => {
    const before = control.asked.length;
    for (let i = 0; i < 20; i++) assert.equal(await get(), 200);
    return control.asked.length === before;
  });
  const asked = control.asked.length;
  control.decide = () => ({ status: 401, error: 'invalid credentials' });
  control.push({ type: 'revoke', ids: control.asked.map(({ id }) => id), disconnect: true });
  while ((await get()) !== 401);
  assert.ok(control.asked.length > asked);
});

test('a decision that has changed is asked for again, and open requests continue', async () => {
  const response = await fetch(`http://127.0.0.1:${gateway.port}/toolbox/${sandbox}/endless`, {
    headers: { authorization: `Bearer ${key}` },
  });
  const reader = response.body?.getReader() ?? assert.fail();
  await reader.read();
  const id = control.asked[0]?.id ?? -1;
  control.push({ type: 'revoke', ids: [id], disconnect: false });
  control.decide = () => ({ status: 409, error: 'it is paused' });
  while ((await get()) !== 409);
  const more = reader.read();
  assert.equal(await Promise.race([more.then(() => 'ended'), get().then(() => 'open')]), 'open');
  // Of the same grant: its credential is revoked later, and now the request ends.
  control.push({ type: 'revoke', ids: [id], disconnect: true });
  await assert.rejects(more);
});

test('a tunnel ends when its credential is revoked', async () => {
  const socket = connect(gateway.port, '127.0.0.1');
  socket.on('error', () => undefined);
  socket.write(
    `GET /toolbox/${sandbox}/ws HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${key}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: abc\r\nSec-WebSocket-Version: 13\r\n\r\n`,
  );
  await once(socket, 'data');
  const closed = once(socket, 'close');
  control.push({ type: 'revoke', ids: [control.asked[0]?.id ?? -1], disconnect: true });
  await closed;
});

test('a gateway that cannot receive revocations does not use its grants', async () => {
  assert.equal(await get(), 200);
  control.talking = false;
  await sleep(GATEWAY_SILENT_MS + 50);
  const asked = control.asked.length;
  const answer = get();
  while (control.asked.length === asked) await sleep(5);
  control.talking = true;
  control.disconnect();
  assert.equal(await answer, 200, 'asked again on the next connection');
});

test('after a reconnect an open request keeps going only while its credential is good', async () => {
  const response = await fetch(`http://127.0.0.1:${gateway.port}/toolbox/${sandbox}/endless`, {
    headers: { authorization: `Bearer ${key}` },
  });
  const reader = response.body?.getReader() ?? assert.fail();
  await reader.read();
  control.decide = () => ({ status: 401, error: 'invalid credentials' });
  control.disconnect();
  await assert.rejects(reader.read());
});

test('a process that stalled keeps its link and its grants: what has arrived meanwhile is not read yet', async () => {
  const grants = grantsOf(control.url, 'toolbox');
  try {
    using lease = await grants.lease({ kind: 'toolbox', sandbox }, key);
    // Longer than a link may be silent.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 6_000);
    await sleep(0);
    await until(() => grants.liveForMs > 0);
    assert.equal(lease.retired.aborted, false);
  } finally {
    await grants.close();
  }
});

test('a target of another kind has its own route, credential and headers', async () => {
  const request = http.get({
    host: '127.0.0.1',
    port: gateway.port,
    path: '/page?x=1',
    headers: {
      host: 'blue.site.test',
      cookie: 'mine=1',
      'x-site-token': 'let-me-in',
      authorization: 'Basic eA==',
    },
  });
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  response.resume();
  assert.equal(response.statusCode, 200);
  assert.deepEqual(response.headers['set-cookie'], ['a=b']);
  assert.deepEqual(control.asked[0]?.target, { kind: 'site', sandbox: 'blue' });
  assert.equal(control.asked[0]?.token, 'let-me-in');
  assert.equal(seen[0]?.url, '/page?x=1');
  assert.equal(seen[0]?.headers.cookie, 'mine=1');
  assert.equal(seen[0]?.headers['x-site-token'], undefined);
});

test('a grant that has expired is released when its target is used again', async () => {
  control.decide = () => ({ vm_id: sandbox, data_url: dataUrl, ttl_ms: 1 });
  for (let i = 0; i < 120; i++) {
    assert.equal(await get(), 200);
    // Longer than the grant may be used.
    await sleep(5);
  }
  const ids = control.asked.map(({ id }) => id);
  assert.equal(ids.length, 120, 'each request is decided again');
  // They are sent in batches of a hundred, before the next resolves.
  const released = control.released.filter((id) => ids.includes(id)).toSorted((a, b) => a - b);
  assert.deepEqual(released, ids.slice(0, released.length));
  assert.ok(released.length > 0);
});

test('activity is reported of grants that were used since the last report, or are by open requests', async () => {
  await using other = await startFakeControl('gateway-credential', 'data-token');
  other.decide = () => ({ vm_id: sandbox, data_url: dataUrl });
  const grants = grantsOf(other.url, 'site');
  try {
    const [open, brief] = [
      await grants.lease({ kind: 'site', sandbox: 'open' }, null),
      await grants.lease({ kind: 'site', sandbox: 'brief' }, null),
    ];
    brief[Symbol.dispose]();
    const ids = other.asked.map(({ id }) => id);
    const report = async (count: number): Promise<number[]> => {
      other.active = [];
      await until(() => {
        grants.reportActivity();
        return other.active.length >= count;
      });
      return other.active.slice(0, count);
    };
    assert.deepEqual(await report(2), ids);
    assert.deepEqual(await report(2), [ids[0], ids[0]], 'only the open one, in each further report');
    open[Symbol.dispose]();
  } finally {
    await grants.close();
  }
});

test('the one used for longest ago is released first when there are too many', async () => {
  await using other = await startFakeControl('gateway-credential', 'data-token');
  other.decide = () => ({ vm_id: sandbox, data_url: dataUrl });
  const grants = grantsOf(other.url, 'site');
  const use = async (first: number, count: number): Promise<void> => {
    const names = Array.from({ length: count }, (_none, index) => String(first + index));
    const leases = await Promise.all(
      names.map((name) => grants.lease({ kind: 'site', sandbox: name }, null)),
    );
    for (const lease of leases) lease[Symbol.dispose]();
  };
  try {
    for (let first = 0; first < GATEWAY_GRANTS_MAX; first += 1_000) await use(first, 1_000);
    assert.equal(other.released.length, 0);
    await use(0, 1);
    await use(GATEWAY_GRANTS_MAX, 100);
    await until(() => other.released.length > 0);
    const names = new Map(other.asked.map(({ id, target }) => [id, target.sandbox]));
    assert.deepEqual(
      other.released.map((id) => names.get(id)),
      Array.from({ length: 100 }, (_none, index) => String(index + 1)),
    );
  } finally {
    await grants.close();
  }
});

test('a grant that was revoked while nothing used it is released: 10,000 sandboxes that were used and changed leave none', async () => {
  const grants = grantsOf(control.url, 'toolbox');
  try {
    control.released.length = 0;
    const count = 10_000;
    using open = await grants.lease({ kind: 'toolbox', sandbox: 'open' }, key);
    for (let index = 0; index < count; index += 500) {
      const leases = await Promise.all(
        Array.from({ length: 500 }, (_, at) =>
          grants.lease({ kind: 'toolbox', sandbox: `s${index + at}` }, key),
        ),
      );
      for (const lease of leases) lease[Symbol.dispose]();
    }
    control.push({ type: 'revoke', ids: control.asked.map(({ id }) => id), disconnect: false });
    await until(() => control.released.length === count);
    assert.equal(grants.size, 1, 'the one that is in use');
    assert.equal(open.revoked.aborted, false);
  } finally {
    await grants.close();
  }
});
