/** Measured values of each contender, in the order in which they were taken. */
export type Samples = Record<string, number[]>;

/** Statistics of a series of measurements, all in the unit of the samples. */
export interface Summary {
  n: number;
  p50: number;
  p95: number;
  p99: number;
  min: number;
  max: number;
}

/** Percentile by the nearest-rank method: always one of the samples, never an invented value. */
export function percentile(sorted: number[], p: number): number {
  const at = Math.min(sorted.length - 1, Math.max(0, Math.ceil((p / 100) * sorted.length) - 1));
  return sorted[at] ?? Number.NaN;
}

export function summarize(samples: number[]): Summary {
  const sorted = [...samples].sort((a, b) => a - b);
  return {
    n: sorted.length,
    p50: percentile(sorted, 50),
    p95: percentile(sorted, 95),
    p99: percentile(sorted, 99),
    min: percentile(sorted, 0),
    max: percentile(sorted, 100),
  };
}

/** Milliseconds that `action` took, on the monotonic clock. */
export async function timed(action: () => Promise<unknown>): Promise<number> {
  const start = process.hrtime.bigint();
  await action();
  return Number(process.hrtime.bigint() - start) / 1e6;
}

export interface RoundOptions {
  rounds: number;
  /** No round begins later than this after the first; a busy machine then gives fewer samples, and `n` tells. */
  maxMs?: number;
  warmUp: number;
  /** Aborted when the rest is no longer needed. */
  signal: AbortSignal;
  /** Negative while warming up, then from 0. */
  onRound?: (round: number) => void;
}

/** Takes the samples that `run` notes, round after round. Those of the first `warmUp` rounds are thrown away. */
export async function inRounds(
  { rounds, maxMs = Infinity, warmUp, signal, onRound }: RoundOptions,
  run: (note: (name: string, value: number) => void) => Promise<void>,
): Promise<Samples> {
  const samples: Samples = {};
  const began = performance.now();
  for (let round = -warmUp; round < rounds; round++) {
    if (round > 0 && performance.now() - began > maxMs) break;
    onRound?.(round);
    signal.throwIfAborted();
    await run((name, value) => {
      if (round >= 0) (samples[name] ??= []).push(value);
    });
  }
  return samples;
}

/** Takes samples of several contenders in turns, so that other load on the machine affects all of them alike. */
export async function interleave(
  contenders: Record<string, () => Promise<number>>,
  options: RoundOptions,
): Promise<Samples> {
  return await inRounds(options, async (note) => {
    for (const [name, measure] of Object.entries(contenders)) {
      options.signal.throwIfAborted();
      note(name, await measure());
    }
  });
}
