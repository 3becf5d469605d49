import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as fc from 'fast-check';
import { parseIpv4 } from '../src/rules/network/cidr.ts';
import {
  cidrs,
  judgeAnswer,
  NEVER_REACHABLE,
  normalizeName,
  parseEgress,
} from '../src/rules/network/egress-rules.ts';

const label = fc.stringMatching(/^[a-z0-9_]([a-z0-9_-]{0,18}[a-z0-9_])?$/);
const name = fc.array(label, { minLength: 1, maxLength: 5 }).map((labels) => `${labels.join('.')}.example`);
const at = (address: string) => parseIpv4(address) ?? assert.fail();

function allow(...entries: string[]) {
  return parseEgress({ enabled: true, allow: entries }, cidrs(['10.1.0.0/16'])) ?? assert.fail();
}

test('a policy that is absent or not enabled restricts nothing', () => {
  assert.equal(parseEgress(undefined), undefined);
  assert.equal(parseEgress({ enabled: false, allow: ['not/valid'] }), undefined);
});

test('an exact name matches itself alone, a wildcard everything below and not itself', () => {
  fc.assert(
    fc.property(name, label, (domain, below) => {
      assert.ok(allow(domain).domains.matches(domain));
      assert.ok(!allow(domain).domains.matches(`${below}.${domain}`));
      assert.ok(!allow(`*.${domain}`).domains.matches(domain));
      assert.ok(allow(`*.${domain}`).domains.matches(`${below}.${domain}`));
      assert.ok(allow(`*.${domain}`).domains.matches(`a.b.${below}.${domain}`));
      assert.ok(!allow(`*.${domain}`).domains.matches(`${below}${domain}`));
    }),
  );
});

test('names are compared without case and without the root dot', () => {
  assert.ok(allow('Web.Example.').domains.matches(normalizeName('WEB.example.') ?? ''));
});

test('an entry of no known form is refused by name', () => {
  for (const entry of [
    '',
    '*',
    '*.',
    'a..b',
    'http://a.example',
    'a.example:443',
    '1.2.3',
    '1.2.3.4/33',
    '::1',
    'a b',
    '*.1.2.3.4',
    'a.*.b',
    '10.0.0.1-10.0.0.9',
  ]) {
    assert.throws(
      () => allow(entry),
      (error: Error) => error.message.includes(JSON.stringify(entry)),
      entry,
    );
  }
});

test('a wide network opens no private address, a private network that is named does', () => {
  const wide = allow('0.0.0.0/0');
  assert.equal(judgeAnswer(wide, at('93.184.216.34')), 'reachable');
  assert.equal(judgeAnswer(wide, at('10.1.2.3')), 'refuse');
  assert.equal(wide.privateNets.length, 0);
  const named = allow('10.1.0.0/16');
  assert.equal(judgeAnswer(named, at('10.1.2.3')), 'reachable');
  assert.equal(judgeAnswer(named, at('10.2.2.3')), 'refuse');
  assert.equal(judgeAnswer(named, at('93.184.216.34')), 'pin');
});

test('loopback, metadata and multicast are never opened', () => {
  const rules = allow('127.0.0.1', '169.254.169.254', '224.0.0.0/8', '0.0.0.0');
  assert.deepEqual(rules.ineffective, ['127.0.0.1', '169.254.169.254', '224.0.0.0/8', '0.0.0.0']);
  assert.deepEqual([rules.publicNets, rules.privateNets], [[], []]);
  for (const policy of [undefined, rules]) {
    assert.equal(judgeAnswer(policy, at('127.0.0.1')), 'refuse');
    assert.equal(judgeAnswer(policy, at('169.254.169.254')), 'refuse');
  }
});

test('without a policy a public answer needs no pin, a private one is refused', () => {
  assert.equal(judgeAnswer(undefined, at('93.184.216.34')), 'reachable');
  assert.equal(judgeAnswer(undefined, at('192.168.1.1')), 'refuse');
});

test('a private network that the operator has not opened is opened by no policy', () => {
  const policy = { enabled: true, allow: ['10.0.0.0/8', '10.1.2.0/24', '192.168.0.0/16'] };
  const none = parseEgress(policy) ?? assert.fail();
  assert.deepEqual([none.privateNets, none.publicNets], [[], []]);
  assert.deepEqual(none.ineffective, policy.allow);
  const one = parseEgress(policy, cidrs(['10.1.0.0/16'])) ?? assert.fail();
  assert.deepEqual(one.ineffective, ['10.0.0.0/8', '192.168.0.0/16']);
  assert.equal(judgeAnswer(one, at('10.1.2.3')), 'reachable');
  assert.equal(judgeAnswer(one, at('10.1.3.3')), 'refuse');
});

test('the metadata services of the clouds are reachable by no policy', () => {
  for (const address of ['169.254.169.254', '168.63.129.16', '100.100.100.200']) {
    const rules = parseEgress({ enabled: true, allow: [address] }, cidrs(['100.64.0.0/10'])) ?? assert.fail();
    assert.equal(judgeAnswer(rules, at(address)), 'refuse');
    assert.equal(judgeAnswer(undefined, at(address)), 'refuse');
    assert.equal(rules.ineffective.length, 1);
  }
  assert.ok(NEVER_REACHABLE.length > 5);
});
