/** A token bucket that says no. */
export class RateLimit {
  readonly #perSecond: number;
  readonly #burst: number;
  readonly #now: () => number;
  #tokens: number;
  #filledAt: number;

  /** @param now milliseconds on a monotonic clock */
  constructor(options: { perSecond: number; burst: number }, now: () => number = () => performance.now()) {
    this.#perSecond = options.perSecond;
    this.#burst = options.burst;
    this.#now = now;
    this.#tokens = options.burst;
    this.#filledAt = now();
  }

  /** @returns false when there is none left */
  take(): boolean {
    const now = this.#now();
    this.#tokens = Math.min(this.#burst, this.#tokens + ((now - this.#filledAt) / 1000) * this.#perSecond);
    this.#filledAt = now;
    if (this.#tokens < 1) return false;
    this.#tokens -= 1;
    return true;
  }
}
