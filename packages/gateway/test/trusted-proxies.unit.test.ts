/** Which peers speak for other clients, and what handlers are told of the client. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { headersForHandler } from '../src/functions/function-route.ts';
import { TrustedProxies } from '../src/http/trusted-proxies.ts';

const proxies = new TrustedProxies(['192.0.2.7', '198.51.100.0/24', '2001:db8::/32']);

test('this machine and the listed addresses and networks are trusted, in any form', () => {
  for (const address of ['127.0.0.1', '127.9.9.9', '::1', '::ffff:127.0.0.1', '192.0.2.7', '198.51.100.200'])
    assert.equal(proxies.has(address), true, address);
  for (const address of ['::ffff:192.0.2.7', '2001:db8::1'])
    assert.equal(proxies.has(address), true, address);
  for (const address of ['192.0.2.8', '198.51.101.1', '2001:db9::1', '', 'x'])
    assert.equal(proxies.has(address), false, address);
});

test('the client is the last one that a trusted proxy names', () => {
  assert.equal(proxies.clientOf('203.0.113.9', '198.51.100.1'), '203.0.113.9');
  assert.equal(proxies.clientOf('127.0.0.1', '1.1.1.1, 203.0.113.5'), '203.0.113.5');
  for (const said of [undefined, '', 'x', '203.0.113.5, 192.0.2.7'])
    assert.equal(proxies.clientOf('127.0.0.1', said), undefined, said);
});

test('handlers are told what a trusted proxy says of its client, and otherwise what the gateway sees', () => {
  const said = { 'x-forwarded-for': '203.0.113.5', 'x-forwarded-host': 'a', 'x-forwarded-proto': 'https' };
  const facts = { isPublic: true, invocationId: 'i', requestId: 'r' };
  const told = (
    headers: Record<string, string>,
    from: { address: string; isProxy: boolean; isTls: boolean },
  ) => {
    const sent = headersForHandler({ host: 'gateway', ...headers }, { ...facts, ...from });
    return ['x-forwarded-for', 'x-forwarded-host', 'x-forwarded-proto'].map((name) => sent[name]);
  };
  const proxy = { address: '192.0.2.7', isProxy: true, isTls: false };
  const client = { address: '203.0.113.9', isProxy: false, isTls: true };
  assert.deepEqual(told(said, proxy), ['203.0.113.5', 'a', 'https']);
  assert.deepEqual(told({}, proxy), ['192.0.2.7', 'gateway', 'http']);
  assert.deepEqual(told(said, client), ['203.0.113.9', 'gateway', 'https']);
});
