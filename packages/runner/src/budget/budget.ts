/** What may be held for one purpose (units in memory, readers): of one owner, and of all. */
export class Budget {
  readonly #all: number;
  readonly #each: number;
  readonly #held = new Map<string, number>();
  #total = 0;

  constructor(most: { all: number; each: number }) {
    this.#all = most.all;
    this.#each = most.each;
  }

  /** @returns how many of these units are available; they are reserved until `release` */
  take(owner: string, units: number): number {
    const held = this.#held.get(owner) ?? 0;
    const granted = Math.max(0, Math.min(units, this.#each - held, this.#all - this.#total));
    if (granted === 0) return 0;
    this.#held.set(owner, held + granted);
    this.#total += granted;
    return granted;
  }

  release(owner: string, units: number): void {
    const left = (this.#held.get(owner) ?? 0) - units;
    this.#total -= units;
    if (left > 0) this.#held.set(owner, left);
    else this.#held.delete(owner);
  }
}
