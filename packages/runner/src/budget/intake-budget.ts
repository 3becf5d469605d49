/** How long a peer may exceed its budget before it is disconnected. */
const PATIENCE_MS = 30_000;

export interface IntakeBudgetOptions {
  /** What may come in a second, in units of the caller's choice. */
  perSecond: number;
  /** What may come at once. */
  burst: number;
  /** Stops reading from the peer, and resumes. */
  pause(): void;
  resume(): void;
  /** The peer has been above its budget for `patienceMs` without a break; absent for peers that may be. */
  onExcess?: () => void;
  patienceMs?: number;
  /** Milliseconds on a monotonic clock. */
  now?: () => number;
}

/**
 * A token bucket for what a hostile peer sends: what is above the budget stays in the peer's socket, so that it costs this
 * process nothing and its other peers no time.
 */
export class IntakeBudget implements Disposable {
  readonly #options: IntakeBudgetOptions;
  readonly #now: () => number;
  #tokens: number;
  #filledAt: number;
  /** Since when the bucket was never full. */
  #busySince: number | undefined;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: IntakeBudgetOptions) {
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
    this.#tokens = options.burst;
    this.#filledAt = this.#now();
  }

  /** Counts what has come. */
  take(units: number): void {
    if (this.#closed) return;
    this.#fill();
    this.#tokens -= units;
    if (this.#tokens >= 0 || this.#timer !== undefined) return;
    const { perSecond, burst, onExcess, patienceMs = PATIENCE_MS } = this.#options;
    this.#busySince ??= this.#now();
    if (onExcess !== undefined && this.#now() - this.#busySince >= patienceMs) {
      this[Symbol.dispose]();
      return onExcess();
    }
    this.#options.pause();
    const waitMs = ((burst / 2 - this.#tokens) / perSecond) * 1000;
    this.#timer = setTimeout(() => this.#resume(), waitMs);
    this.#timer.unref();
  }

  [Symbol.dispose](): void {
    this.#closed = true;
    clearTimeout(this.#timer);
  }

  #resume(): void {
    this.#timer = undefined;
    this.#options.resume();
  }

  #fill(): void {
    const { perSecond, burst } = this.#options;
    const now = this.#now();
    this.#tokens = Math.min(burst, this.#tokens + ((now - this.#filledAt) / 1000) * perSecond);
    this.#filledAt = now;
    if (this.#tokens === burst) this.#busySince = undefined;
  }
}
