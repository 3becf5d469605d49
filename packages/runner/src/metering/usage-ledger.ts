/**
 * Turns readings into what was used in each minute. Pure: it reads no clock and no file, so that a test can compare it with
 * a model, and a restarted runner continues from a saved state.
 */
import { COUNTERS, growth, type Counters, type Reading } from './counters.ts';

export const MINUTE_MS = 60_000;
/**
 * Longest time between two readings that is counted as observed. Counters tell what was used meanwhile, and it is spread
 * evenly; after a longer time nothing is recorded, because where in it the use was is not known.
 */
export const OBSERVED_MAX_MS = 300_000;

/** Use within a part of one minute. */
export interface Bucket extends Counters {
  vmId: string;
  /** Minutes since 1970. */
  minute: number;
  durationMs: number;
  memoryKibMs: number;
  diskPeakBytes: number;
}

/** What the next reading of a sandbox continues from. */
export interface Mark {
  /** The first reading of its present run. */
  first: Reading;
  last: Reading;
}

export interface LedgerState {
  marks: [string, Mark][];
  /** Buckets that were not taken. */
  open: Bucket[];
}

export class UsageLedger {
  readonly #marks: Map<string, Mark>;
  /** By sandbox, then by minute. */
  readonly #open = new Map<string, Map<number, Bucket>>();

  constructor(state: LedgerState = { marks: [], open: [] }) {
    this.#marks = new Map(state.marks);
    for (const bucket of state.open) this.#minutesOf(bucket.vmId).set(bucket.minute, { ...bucket });
  }

  mark(vmId: string): Mark | undefined {
    return this.#marks.get(vmId);
  }

  get vmIds(): string[] {
    return [...this.#marks.keys()];
  }

  /**
   * Records a reading. The first one of a life only begins it: what the VMM used before belongs to no sandbox. The same
   * reading again changes nothing.
   */
  add(vmId: string, reading: Reading): void {
    const mark = this.#marks.get(vmId);
    if (mark === undefined || mark.last.life !== reading.life) {
      this.#marks.set(vmId, { first: reading, last: reading });
      return;
    }
    const { last } = mark;
    // Not the time of day: it may be set in between.
    const passed = reading.uptimeMs - last.uptimeMs;
    if (passed <= 0) return;
    if (passed <= OBSERVED_MAX_MS) this.#spread(vmId, last, reading, passed);
    this.#marks.set(vmId, { first: mark.first, last: reading });
  }

  /** The sandbox does not run any more. What it has used is kept until it is taken. */
  end(vmId: string): void {
    this.#marks.delete(vmId);
  }

  /**
   * Removes and returns the buckets to which nothing will be added: those of earlier minutes than the last reading, and all
   * of a sandbox that has ended.
   */
  take(): Bucket[] {
    const taken: Bucket[] = [];
    for (const [vmId, minutes] of this.#open) {
      const mark = this.#marks.get(vmId);
      const current = mark === undefined ? Infinity : Math.floor(mark.last.atMs / MINUTE_MS);
      for (const [minute, bucket] of minutes) {
        if (minute === current) continue;
        minutes.delete(minute);
        taken.push(bucket);
      }
      if (minutes.size === 0) this.#open.delete(vmId);
    }
    return taken;
  }

  /** Takes back what was taken and could not be written. */
  putBack(buckets: readonly Bucket[]): void {
    for (const bucket of buckets) this.#minutesOf(bucket.vmId).set(bucket.minute, bucket);
  }

  get state(): LedgerState {
    return {
      marks: [...this.#marks],
      open: [...this.#open.values()].flatMap((minutes) => [...minutes.values()]),
    };
  }

  /** Spreads the use between two readings evenly over the time before the second one. Nothing is lost to rounding. */
  #spread(vmId: string, before: Reading, after: Reading, passed: number): void {
    const used = COUNTERS.map((name) => growth(before[name], after[name]));
    const memoryKibMs = Math.round(((before.memoryKib + after.memoryKib) / 2) * passed);
    const totals = [memoryKibMs, ...used];
    const given = totals.map(() => 0);
    const beginMs = after.atMs - passed;
    for (let fromMs = beginMs; fromMs < after.atMs; ) {
      const minute = Math.floor(fromMs / MINUTE_MS);
      const untilMs = Math.min(after.atMs, (minute + 1) * MINUTE_MS);
      const share = (untilMs - beginMs) / passed;
      const [kibMs = 0, ...counted] = totals.map((total, at) => {
        const upTo = untilMs === after.atMs ? total : Math.floor(total * share);
        const part = upTo - (given[at] ?? 0);
        given[at] = upTo;
        return part;
      });
      const bucket = this.#bucket(vmId, minute);
      bucket.durationMs += untilMs - fromMs;
      bucket.memoryKibMs += kibMs;
      bucket.diskPeakBytes = Math.max(bucket.diskPeakBytes, before.diskBytes, after.diskBytes);
      COUNTERS.forEach((name, at) => (bucket[name] += counted[at] ?? 0));
      fromMs = untilMs;
    }
  }

  #bucket(vmId: string, minute: number): Bucket {
    const minutes = this.#minutesOf(vmId);
    const known = minutes.get(minute);
    if (known !== undefined) return known;
    const bucket: Bucket = {
      vmId,
      minute,
      durationMs: 0,
      memoryKibMs: 0,
      diskPeakBytes: 0,
      cpuMicros: 0,
      diskReadBytes: 0,
      diskWriteBytes: 0,
      netRxBytes: 0,
      netTxBytes: 0,
    };
    minutes.set(minute, bucket);
    return bucket;
  }

  #minutesOf(vmId: string): Map<number, Bucket> {
    const known = this.#open.get(vmId);
    if (known !== undefined) return known;
    const minutes = new Map<number, Bucket>();
    this.#open.set(vmId, minutes);
    return minutes;
  }
}
