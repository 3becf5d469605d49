import assert from 'node:assert/strict';
import { test } from 'node:test';
import { RateLimit } from '../src/rules/fair-share.ts';

test('a rate limit gives its burst at once and its rate from then on', () => {
  let now = 0;
  const limit = new RateLimit({ perSecond: 10, burst: 5 }, () => now);
  const taken = (): number => Array.from({ length: 100 }, () => limit.take()).filter(Boolean).length;
  assert.equal(taken(), 5);
  assert.equal(taken(), 0);
  now += 300;
  assert.equal(taken(), 3);
  now += 60_000;
  assert.equal(taken(), 5);
});
