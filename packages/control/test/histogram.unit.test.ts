import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { durationOf, percentile } from '../src/functions/invocations/histogram.ts';

describe('a histogram of durations', () => {
  it('has no percentiles without durations, and those of one duration are that', () => {
    assert.equal(percentile({ buckets: [], counts: [] }, 0.5), null);
    for (const share of [0, 0.5, 1])
      assert.equal(percentile({ buckets: [500], counts: [1] }, share), durationOf(500));
  });

  it('interpolates between two durations as percentile_cont', () => {
    const histogram = { buckets: [0, 700], counts: [1, 1] };
    assert.equal(percentile(histogram, 0.5), durationOf(700) / 2);
    assert.equal(percentile({ buckets: [100, 700], counts: [3, 1] }, 0.5), durationOf(100));
  });

  it('each bucket is at most 2 % from its ends', () => {
    for (let bucket = 1; bucket < 660; bucket += 1) {
      const [low, high] = [1.04 ** (bucket - 1) / 1_000, 1.04 ** bucket / 1_000];
      const middle = durationOf(bucket);
      assert.ok(middle - low <= 0.02 * low && high - middle <= 0.02 * high, String(bucket));
    }
  });
});
