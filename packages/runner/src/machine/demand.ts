/** What counts of the past: an arrival this long ago has a third of its weight. */
const MEMORY_MS = 60_000;
/** So many in that time make it worth it to keep one waiting. */
const REPEATED = 2;
/** Weight of the newest measurement. */
const NEWEST = 0.3;

/**
 * How many VMs of a recipe ought to wait: as many as are asked for while one is made, on average, and a few for arrivals
 * that come closer together. Both averages are exponentially weighted.
 */
export class Demand {
  readonly #least: number;
  readonly #now: () => number;
  #arrivals = 0;
  #at: number;
  #makingMs: number | undefined;

  /** @param least kept waiting without requests; with 0, one waits only where it was asked for repeatedly */
  constructor(least: number, now: () => number = () => performance.now()) {
    this.#least = least;
    this.#now = now;
    this.#at = now();
  }

  /** One was asked for, whether or not one waited. */
  arrived(): void {
    this.#arrivals = this.#recent() + 1;
    this.#at = this.#now();
  }

  /** One was made, which took this long. */
  made(ms: number): void {
    this.#makingMs = this.#makingMs === undefined ? ms : NEWEST * ms + (1 - NEWEST) * this.#makingMs;
  }

  /** How many ought to wait. */
  get wanted(): number {
    const recent = this.#recent();
    const spare = this.#least === 0 && recent >= REPEATED ? 1 : this.#least;
    return spare + Math.floor((recent / MEMORY_MS) * (this.#makingMs ?? 0));
  }

  /** Whether there was no request for long. */
  get isOver(): boolean {
    return this.#least === 0 && this.#recent() < 0.1;
  }

  #recent(): number {
    return this.#arrivals * Math.exp((this.#at - this.#now()) / MEMORY_MS);
  }
}
