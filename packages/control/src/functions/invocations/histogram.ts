/**
 * Percentiles of durations from their histogram (`duration_bucket` in the database): bucket 0 is at most a microsecond, bucket n up to
 * 1.04^n microseconds. As `percentile_cont` they lie between two durations; each of these is known within 2 %, and so is what lies
 * between them.
 */

const BASE = 1.04;

export interface Histogram {
  /** Ascending. */
  buckets: readonly number[];
  /** How many durations are in each. */
  counts: readonly number[];
}

/** The duration, in milliseconds, from which all in the bucket are at most 2 % away. */
export function durationOf(bucket: number): number {
  return bucket === 0 ? 0 : (2 * BASE ** bucket) / (BASE + 1) / 1_000;
}

/** @param share 0 to 1. @returns milliseconds; null when there are no durations */
export function percentile({ buckets, counts }: Histogram, share: number): number | null {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total <= 0) return null;
  const place = share * (total - 1);
  /** The duration with so many before it. */
  const at = (rank: number): number => {
    let passed = 0;
    for (const [index, count] of counts.entries()) {
      passed += count;
      if (rank < passed) return durationOf(buckets[index] ?? 0);
    }
    return durationOf(buckets.at(-1) ?? 0);
  };
  const below = at(Math.floor(place));
  return below + (at(Math.ceil(place)) - below) * (place % 1);
}
