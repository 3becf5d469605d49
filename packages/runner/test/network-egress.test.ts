import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type HelloOptions, clientHello } from '@releap/testing/client-hello';
import { eventually } from '@releap/testing/eventually';
import { run } from '../src/process/index.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import type { AgentAnswer, Namespace } from './support/namespaces.ts';
import { NetworkWorld } from './support/network-world.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const ZONE: Record<string, string> = {
  'web.example': '203.0.113.2',
  'api.web.example': '203.0.113.3',
  // At the same address, as names of a CDN are.
  'shared.other': '203.0.113.2',
  'evil.example': '203.0.113.3',
};
const GREETING = 'internet 203.0.113.1\n';
const RESET = { error: 'ECONNRESET' };
/** Added to the number of a service's block of addresses, of so many. */
const MARK = 0x3000;
const BLOCKS = 4096;

let world: NetworkWorld;
let guest: Namespace;

before(async () => {
  world = await NetworkWorld.start({
    resolve: (name) => (ZONE[name] === undefined ? undefined : [ZONE[name]]),
    ttl: 30,
  });
  // Echoes; the client speaks first.
  await world.internet.ask('tcp-server', { host: '0.0.0.0', port: 443, name: '' });
  guest = await world.guest('proxied', {
    enabled: true,
    allow: ['web.example', '*.web.example', '203.0.113.4'],
  });
  for (const name of ['web.example', 'api.web.example']) await guest.ask('resolve', { name });
});
after(async () => {
  await guest?.[Symbol.asyncDispose]();
  await world?.[Symbol.asyncDispose]();
});

const send = (bytes: Buffer, more: object = {}): Promise<AgentAnswer> =>
  guest.ask('tcp', { host: '203.0.113.2', port: 443, base64: bytes.toString('base64'), ...more });
const hello = (options: HelloOptions, more: object = {}): Promise<AgentAnswer> =>
  send(clientHello(options), more);
const http = (head: string, more: object = {}): Promise<AgentAnswer> =>
  send(Buffer.from(`${head.replaceAll('\n', '\r\n')}\r\n\r\nbody`), more);

async function denied(reason: string, name?: string): Promise<number> {
  const list = (await world.network.denied('proxied')) ?? [];
  return list
    .filter((one) => one.reason === reason && (name === undefined || one.name === name))
    .reduce((sum, { count }) => sum + count, 0);
}

test('TLS passes where its server name is allowed and was resolved to that address', async () => {
  const echoed = await hello({ names: ['web.example'] });
  assert.ok((echoed.text?.length ?? 0) > 50, JSON.stringify(echoed));
  assert.ok((await hello({ names: ['WEB.example.'] })).text);
  // In records of a few bytes, in many segments.
  assert.ok((await hello({ names: ['web.example'], recordBytes: 7 }, { parts: 40 })).text);
  assert.ok((await hello({ names: ['web.example'], ech: true })).text);
  for (const [names, reason] of [
    [['shared.other'], 'not_allowed'],
    [['api.web.example'], 'name_mismatch'],
    [['unknown.web.example'], 'name_mismatch'],
    [[], 'no_name'],
    [['203.0.113.2'], 'no_name'],
    [['web.example', 'evil.example'], 'unreadable'],
  ] as const)
    assert.deepEqual(await hello({ names }), RESET, `${names.join()} ${reason}`);
  assert.deepEqual(await hello({ names: ['outer.example'], ech: true }), RESET);
  assert.deepEqual(await hello({ names: ['evil.example'], recordBytes: 3 }, { parts: 30 }), RESET);
  await eventually('all are in the log', async () => {
    const counts = await Promise.all([
      denied('not_allowed', 'shared.other'),
      denied('name_mismatch', 'api.web.example'),
      denied('no_name'),
      denied('unreadable'),
      denied('not_allowed', 'outer.example'),
      denied('not_allowed', 'evil.example'),
    ]);
    return counts.join() === '1,1,2,1,1,1';
  });
});

test('HTTP passes where its host is allowed, and the same in all of its places', async () => {
  const get = 'GET / HTTP/1.1\nHost: web.example';
  assert.match((await http(`${get}\nContent-Length: 4`)).text ?? '', /^GET \/[^]*body$/);
  assert.match((await http(`${get}\n\n${get}\nContent-Length: 4`, { parts: 9 })).text ?? '', /body$/);
  // The second request of a connection is for another host.
  const second = `${get}\n\nGET / HTTP/1.1\nHost: shared.other`;
  assert.deepEqual(await http(second, { stay: true }), RESET);
  assert.match(
    (await http('POST / HTTP/1.1\nX: 1\nhost: Web.Example:443\nContent-Length: 4', { parts: 20 })).text ?? '',
    /body$/,
  );
  for (const head of [
    'GET / HTTP/1.1\nHost: shared.other',
    'GET / HTTP/1.1\nHost: api.web.example',
    'GET / HTTP/1.1\nHost: 203.0.113.2',
    'GET / HTTP/1.1\nHost: [::ffff:203.0.113.2]',
    'GET / HTTP/1.1\nHost: 3405803778',
    'GET / HTTP/1.0',
    'GET / HTTP/1.1\nHost: web.example\nHost: shared.other',
    'GET / HTTP/1.1\nHost: web.example\n X-Folded: 1',
    'GET http://shared.other/ HTTP/1.1\nHost: web.example',
    'CONNECT shared.other:443 HTTP/1.1\nHost: web.example',
    'GET / HTTP/1.1\nHost: web.example\nUpgrade: h2c',
    'PRI * HTTP/2.0',
    'GET\t/ HTTP/1.1\nHost: web.example',
    'GET /',
  ])
    assert.deepEqual(await http(head), RESET, head);
});

test('a server that speaks first is passed on, and what is neither TLS nor HTTP', async () => {
  assert.deepEqual(await guest.ask('tcp', { host: '203.0.113.2', port: 80, stay: false }), {
    text: GREETING,
  });
  assert.deepEqual(await send(Buffer.from([0, 0, 0, 8, 4, 210, 22, 47])), {
    text: Buffer.from([0, 0, 0, 8, 4, 210, 22, 47]).toString(),
  });
  const body = 'x'.repeat(500_000);
  const said = await guest.ask('tcp', { host: '203.0.113.2', port: 80, text: `\0${body}` });
  assert.equal(said.text?.length, GREETING.length + 1 + body.length);
});

test('addresses that the policy lists need no name; others and UDP to port 443 are refused', async () => {
  await world.internet.ip('address add 203.0.113.4/24 dev wan0');
  assert.ok((await hello({ names: ['evil.example'] }, { host: '203.0.113.4' })).text);
  assert.deepEqual(await hello({ names: ['web.example'] }, { host: '203.0.113.9' }), {
    error: 'ECONNREFUSED',
  });
  const quic = await guest.ask('udp', { host: '203.0.113.2', port: 443, text: 'quic', wait: 2_000 });
  assert.match(quic.error ?? '', /EHOSTUNREACH|ECONNREFUSED|EACCES/);
  assert.deepEqual(await guest.ask('udp', { host: '203.0.113.2', port: 99, text: 'other' }), {
    text: 'other',
  });
});

test('a connection outlives a restart of the runner, and names are known to a new netd', async () => {
  await world.network.detach();
  await world.reopen();
  assert.ok((await hello({ names: ['web.example'] })).text);
  const pid = (await world.network.netdPid()) ?? assert.fail();
  process.kill(pid, 'SIGKILL');
  const answer = await eventually('a new netd passes it on', async () => {
    const said = await hello({ names: ['web.example'] });
    // While none listens it is refused, and never led past the proxy.
    if (said.text === undefined) assert.match(said.error ?? '', /ECONNREFUSED|ECONNRESET/);
    return said.text;
  });
  assert.ok(answer.length > 50);
  assert.deepEqual(await hello({ names: ['shared.other'] }), RESET);
});

test('all connections of a sandbox with secrets go through the proxy, and none is refused by its name', async () => {
  const slot = await world.network.take('secretive', { intercept: true });
  const { attachGuest } = await import('./support/namespaces.ts');
  await using open = await attachGuest(`${world.unique}-secretive`, slot);
  const bytes = clientHello({ names: ['evil.example'] }).toString('base64');
  assert.ok((await open.ask('tcp', { host: '203.0.113.2', port: 443, base64: bytes })).text);
  assert.deepEqual(await open.ask('tcp', { host: '10.9.0.2', port: 80 }), { error: 'ECONNREFUSED' });
  assert.deepEqual(await open.ask('tcp', { host: '203.0.113.1', port: 80 }), { error: 'ECONNREFUSED' });
  await world.network.release('secretive');
});

test('marks, routes and rules of a service go when it closes, and only those', async () => {
  const rules = async (): Promise<string> => run('ip', ['rule', 'show']);
  await run('ip', ['rule', 'add', 'fwmark', '77', 'lookup', '77', 'priority', '32001']);
  assert.match(await rules(), /fwmark 0x3[0-9a-f]{3} lookup/);
  await world.network.release('proxied');
  await world.network.close();
  assert.doesNotMatch(await rules(), /fwmark 0x3[0-9a-f]{3} lookup/);
  assert.match(await rules(), /fwmark 0x4d lookup 77/);
  assert.doesNotMatch(await run('ip', ['route', 'show', 'table', 'all']), /local default/);
  await world.reopen();
});

test('a start removes the routing of services that were killed, and keeps that of those that run', async () => {
  const rules = async (): Promise<string[]> =>
    [...(await run('ip', ['rule', 'show'])).matchAll(/fwmark (0x3[0-9a-f]{3}) lookup/g)].map(
      ([, mark]) => mark ?? '',
    );
  const own = Number((await rules())[0]) - MARK;
  // A killed runner of the same home, whose block was lost with its folder.
  await world.network.detach();
  await rm(join(world.home, 'network'), { recursive: true });
  // Another service, whose bridge is there, and one of which only this is left.
  const [other, gone] = [own + 1, own + 2].map((block) => block % BLOCKS) as [number, number];
  await run('ip', ['link', 'add', 'rl01234567br', 'type', 'bridge']);
  const address = `100.${64 + (other >> 6)}.${(other & 63) * 4}.1/22`;
  await run('ip', ['address', 'add', address, 'dev', 'rl01234567br']);
  for (const block of [other, gone]) {
    const table = String(0x726c_0000 + block);
    await run('ip', ['rule', 'add', 'fwmark', String(MARK + block), 'lookup', table, 'priority', '32000']);
    await run('ip', ['route', 'add', 'local', 'default', 'dev', 'lo', 'table', table]);
  }
  // Where none of these blocks is.
  await world.reopen({ range: `100.${64 + (((own >> 6) + 32) % 64)}.0.0/16` });
  const found = (await rules()).map((mark) => Number(mark) - MARK);
  assert.equal(found.length, 2, found.join());
  assert.ok(found.includes(other) && !found.includes(gone) && !found.includes(own), found.join());
  const routes = await run('ip', ['route', 'show', 'table', 'all']);
  assert.equal(routes.match(/local default/g)?.length, 2, routes);
  await world.network.close();
  assert.deepEqual(await rules(), [`0x${(MARK + other).toString(16)}`]);
  await world.reopen();
});
