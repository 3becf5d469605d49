import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as fc from 'fast-check';
import {
  BLOCK_BITS,
  chooseBlock,
  DEFAULT_RANGE,
  DEFAULT_UID_BASE,
  indexInName,
  makeAddressPlan,
  MAX_SLOTS,
  netdUid,
  netnsPrefix,
  serviceTag,
  slotPlan,
  vethPrefix,
} from '../src/network/address-plan.ts';
import {
  type Cidr,
  cidrSize,
  contains,
  containsAddress,
  formatCidr,
  formatIpv4,
  overlaps,
  parseCidr,
  parseIpv4,
} from '@releap/contract/netd';

const address = fc.nat(0xffff_ffff);
const cidr = fc
  .tuple(address, fc.integer({ min: 0, max: 32 }))
  .map(([value, bits]) => ({ base: value - (value % cidrSize(bits)), bits }));
const range = parseCidr(DEFAULT_RANGE) ?? assert.fail();
const inRange = fc
  .tuple(fc.nat(cidrSize(range.bits) - 1), fc.integer({ min: 12, max: 32 }))
  .map(([offset, bits]) => ({ base: range.base + offset - ((range.base + offset) % cidrSize(bits)), bits }));
const home = fc.string({ minLength: 1 });
const index = fc.integer({ min: 0, max: MAX_SLOTS - 1 });

function planOf(identity: string, taken: Cidr[] = []) {
  const tag = serviceTag(identity);
  return makeAddressPlan(tag, chooseBlock(tag, DEFAULT_RANGE, taken), MAX_SLOTS, DEFAULT_UID_BASE);
}

test('an address and a prefix are formatted as they were parsed', () => {
  fc.assert(fc.property(address, (value) => parseIpv4(formatIpv4(value)) === value));
  fc.assert(fc.property(cidr, (value) => assert.deepEqual(parseCidr(formatCidr(value)), value)));
});

test('overlap is symmetric, and agrees with membership', () => {
  fc.assert(
    fc.property(cidr, cidr, address, (a, b, value) => {
      assert.equal(overlaps(a, b), overlaps(b, a));
      if (containsAddress(a, value) && containsAddress(b, value)) assert.ok(overlaps(a, b));
      if (overlaps(a, b)) assert.ok(contains(a, b) || contains(b, a));
    }),
  );
});

test('text that only looks like an address is refused', () => {
  for (const text of [
    '',
    '1.2.3',
    '1.2.3.4.5',
    '256.0.0.1',
    '01.2.3.4',
    '1.2.3.4 ',
    '0x1.2.3.4',
    '1e1.2.3.4',
  ]) {
    assert.equal(parseIpv4(text), undefined, text);
  }
  for (const text of ['1.2.3.4/33', '1.2.3.4/', '1.2.3.4/08', '1.2.3.4/8/8', '1.2.3.4/-1', '/8']) {
    assert.equal(parseCidr(text), undefined, text);
  }
});

test('a chosen block lies in the range and overlaps nothing that is taken', () => {
  fc.assert(
    fc.property(home, fc.array(inRange, { maxLength: 20 }), (identity, taken) => {
      const block = chooseBlock(serviceTag(identity), DEFAULT_RANGE, taken);
      assert.ok(contains(range, block));
      assert.ok(!taken.some((other) => overlaps(other, block)));
    }),
  );
});

test('when everything is taken, the error names the range', () => {
  assert.throws(
    () => chooseBlock('00000000', DEFAULT_RANGE, [range]),
    /no free \/22 block .* in 100\.64\.0\.0\/10/,
  );
  assert.throws(() => chooseBlock('00000000', '10.0.0.0/23', []), /must be an IPv4 CIDR of \/22 or larger/);
});

test('two services share neither names nor addresses nor users', () => {
  fc.assert(
    fc.property(home, home, index, index, (one, two, i, j) => {
      fc.pre(one !== two);
      const first = planOf(one);
      const second = planOf(two, [first.block]);
      const [a, b] = [slotPlan(first, i), slotPlan(second, j)];
      for (const key of ['netns', 'veth', 'hostAddress', 'vethMac', 'uid'] as const) {
        assert.notEqual(a[key], b[key]);
      }
      assert.notEqual(first.table, second.table);
      assert.notEqual(first.bridge, second.bridge);
    }),
  );
});

test('names fit into an interface name, and an index is found again by name', () => {
  fc.assert(
    fc.property(home, index, (identity, i) => {
      const plan = planOf(identity);
      const slot = slotPlan(plan, i);
      assert.ok(slot.veth.length <= 15 && plan.bridge.length <= 15);
      assert.equal(indexInName(vethPrefix(plan.tag), slot.veth), i);
      assert.equal(indexInName(netnsPrefix(plan.tag), slot.netns), i);
      assert.equal(indexInName(vethPrefix(plan.tag), plan.bridge), undefined);
      const value = parseIpv4(slot.hostAddress) ?? assert.fail();
      assert.ok(containsAddress(plan.block, value));
      assert.ok(value !== plan.block.base && value !== plan.block.base + cidrSize(BLOCK_BITS) - 1);
      assert.notEqual(slot.hostAddress, plan.serviceAddress);
      assert.ok(slot.uid >= DEFAULT_UID_BASE && slot.uid < 2 ** 31);
      assert.ok(netdUid(plan) >= DEFAULT_UID_BASE && netdUid(plan) < 2 ** 31);
      assert.notEqual(slot.uid, netdUid(plan));
    }),
  );
});
