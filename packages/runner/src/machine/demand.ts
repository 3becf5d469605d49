/** Time constant of the average: an arrival this long ago has about a third of its weight. */
const MEMORY_MS = 60_000;
/** Weighted arrivals from which on one VM waits. */
const REPEATED = 2;
/** Weight of the newest measurement. */
const NEWEST = 0.3;

/**
 * How many VMs of a recipe should wait: the average number of requests during the time that it takes to make one, and some
 * spares for bursts. Both averages are exponentially weighted.
 */
export class Demand {
  readonly #least: number;
  readonly #now: () => number;
  #arrivals = 0;
  #at: number;
  #makingMs: number | undefined;

  /** @param least number that waits without requests; with 0, one waits only after repeated requests */
  constructor(least: number, now: () => number = () => performance.now()) {
    this.#least = least;
    this.#now = now;
    this.#at = now();
  }

  /** Records a request, whether or not one waited. */
  arrived(): void {
    this.#arrivals = this.#recent() + 1;
    this.#at = this.#now();
  }

  /** Records how long it took to make one. */
  made(ms: number): void {
    this.#makingMs = this.#makingMs === undefined ? ms : NEWEST * ms + (1 - NEWEST) * this.#makingMs;
  }

  /** How many should wait. */
  get wanted(): number {
    const recent = this.#recent();
    const spare = this.#least === 0 && recent >= REPEATED ? 1 : this.#least;
    return spare + Math.floor((recent / MEMORY_MS) * (this.#makingMs ?? 0));
  }

  /** Whether the last request is long ago. */
  get isOver(): boolean {
    return this.#least === 0 && this.#recent() < 0.1;
  }

  #recent(): number {
    return this.#arrivals * Math.exp((this.#at - this.#now()) / MEMORY_MS);
  }
}
