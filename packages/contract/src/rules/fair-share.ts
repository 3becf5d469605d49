/** How owners share what is limited: a number of places, and a rate. */

/**
 * How owners (organizations) share a fixed number of places. One rule for all that is shared: an owner may have at most `share`
 * times as many places as are free (dynamic thresholds, Choudhury and Hahne 1998). With a share of 1 an owner that is alone gets
 * half of the places, two busy ones a third each, and the last free place goes only to an owner that has none: nobody who floods
 * takes it from a newcomer.
 * @returns whether an owner that has `own` places may have another one while so many are free
 */
export function hasShare(own: number, free: number, share = 1): boolean {
  return free > 0 && (own === 0 || own < share * free);
}

/** Counts places, and tells who may have another one. */
export class FairShare<Owner> {
  readonly #most: number;
  readonly #share: number;
  readonly #held = new Map<Owner, number>();
  #total = 0;

  /** @param most places */
  constructor(most: number, share = 1) {
    this.#most = most;
    this.#share = share;
  }

  /** Places that are taken. */
  get total(): number {
    return this.#total;
  }

  get free(): number {
    return Math.max(0, this.#most - this.#total);
  }

  get held(): ReadonlyMap<Owner, number> {
    return this.#held;
  }

  of(owner: Owner): number {
    return this.#held.get(owner) ?? 0;
  }

  mayTake(owner: Owner): boolean {
    return hasShare(this.of(owner), this.free, this.#share);
  }

  /** How many it may take now, one after another. */
  mayTakeCount(owner: Owner): number {
    const own = this.of(owner);
    if (this.free === 0) return 0;
    const count = Math.ceil((this.#share * this.free - own) / (1 + this.#share));
    return Math.min(this.free, Math.max(count, own === 0 ? 1 : 0));
  }

  /** Takes a place, also one that the owner has no share of: the caller has asked. */
  take(owner: Owner): void {
    this.#held.set(owner, this.of(owner) + 1);
    this.#total++;
  }

  /** To be called once for each `take`. */
  release(owner: Owner): void {
    const own = this.of(owner);
    if (own === 0) return;
    this.#total--;
    if (own === 1) this.#held.delete(owner);
    else this.#held.set(owner, own - 1);
  }

  clear(): void {
    this.#held.clear();
    this.#total = 0;
  }
}

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
