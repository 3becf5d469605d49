/** Milliseconds of the steps of one operation: each since the previous one, or all since the start of the operation. */
export class Stopwatch {
  readonly steps: Record<string, number> = {};
  readonly #isCumulative: boolean;
  #since = performance.now();

  /** @param isCumulative counts each step from the start of the operation */
  constructor(isCumulative = false) {
    this.#isCumulative = isCumulative;
  }

  mark(name: string): void {
    const now = performance.now();
    this.steps[name] = Math.round((now - this.#since) * 10) / 10;
    if (!this.#isCumulative) this.#since = now;
  }
}
