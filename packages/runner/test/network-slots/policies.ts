/** Names, and what egress policies let a guest reach. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { world, GREETING } from '../support/network-slots-world.ts';

test('names are resolved at the gateway, over UDP and TCP; IPv6 addresses are never given', async () => {
  await using any = await world.guest('names');
  assert.deepEqual(await any.ask('resolve', { name: 'web.example' }), { answers: ['203.0.113.2'] });
  assert.deepEqual(await any.ask('resolve', { name: 'web.example', type: 'AAAA' }), { error: 'ENODATA' });
  assert.equal((await any.ask('resolve', { name: 'big.example' })).answers?.length, 90);
  assert.deepEqual(await any.ask('resolve', { name: 'missing.example' }), { error: 'ENOTFOUND' });
  assert.deepEqual(await any.ask('resolve', { name: 'rebind.web.example' }), { error: 'ENOTFOUND' });
  await world.network.release('names');
});

test('with a domain policy only what the names resolved to is reachable', async () => {
  await using bound = await world.guest('bound', { enabled: true, allow: ['web.example', '*.web.example'] });
  const web = { host: '203.0.113.2', port: 80 };
  assert.deepEqual(await bound.ask('tcp', web), { error: 'ECONNREFUSED' });
  assert.deepEqual(await bound.ask('resolve', { name: 'other.example' }), { error: 'ENOTFOUND' });
  assert.deepEqual(await bound.ask('resolve', { name: 'rebind.web.example' }), { error: 'ENOTFOUND' });
  assert.deepEqual(await bound.ask('resolve', { name: 'web.example' }), { answers: ['203.0.113.2'] });
  assert.deepEqual(await bound.ask('tcp', web), { text: GREETING });
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.3', port: 80 }), { error: 'ECONNREFUSED' });
  assert.deepEqual(await bound.ask('resolve', { name: 'api.web.example' }), { answers: ['203.0.113.3'] });
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.3', port: 80 }), { text: GREETING });
  // A name server that is not ours is not on the list.
  const own = await bound.ask('resolve', { name: 'web.example', server: '203.0.113.4', wait: 2_000 });
  assert.notEqual(own.error, undefined);
  await world.network.release('bound');
});

/** Metadata services of clouds: of most, of Azure (a public address), and of Alibaba (in a shared range). */
const METADATA = ['169.254.169.254', '168.63.129.16', '100.100.100.200'];

test('with an address policy the rest is refused, and a private network is open when it is named', async () => {
  await using bound = await world.guest('nets', {
    enabled: true,
    allow: ['203.0.113.3', '10.9.0.0/24', '0.0.0.0/5', '192.168.0.0/16', ...METADATA, '100.100.100.0/24'],
  });
  const refused = { error: 'ECONNREFUSED' };
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.3', port: 80 }), { text: GREETING });
  assert.deepEqual(await bound.ask('tcp', { host: '203.0.113.2', port: 80 }), refused);
  assert.match((await bound.ask('tcp', { host: '10.9.0.2', port: 80 })).text ?? '', /^internet 10\.9\.0\.1/);
  // One that the operator has not opened, and addresses that nothing opens: not even a network of the operator's around them.
  await world.internet.ip(
    ...['192.168.7.7', ...METADATA].map((address) => `address replace ${address}/32 dev wan0`),
  );
  for (const host of ['192.168.7.7', ...METADATA])
    assert.deepEqual(await bound.ask('tcp', { host, port: 80 }), refused, host);
  await world.network.release('nets');
  await using free = await world.guest('freed');
  assert.deepEqual(await free.ask('tcp', { host: '203.0.113.2', port: 80 }), { text: GREETING });
  await world.network.release('freed');
});
