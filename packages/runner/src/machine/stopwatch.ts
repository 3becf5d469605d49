/** Milliseconds between the steps of one operation. */
export class Stopwatch {
  readonly laps: Record<string, number> = {};
  #last = performance.now();

  lap(name: string): void {
    const now = performance.now();
    this.laps[name] = Math.round((now - this.#last) * 10) / 10;
    this.#last = now;
  }
}
