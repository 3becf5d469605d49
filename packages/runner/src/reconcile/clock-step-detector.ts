const LOOK_EVERY_MS = 5_000;
/** Less than that is what a clock that is being kept right does. */
const STEP_MIN_MS = 500;

/**
 * Notices that the host's clock was set, or that the host was suspended: a guest's clock does not move with it. The
 * monotonic clock does neither.
 */
export class ClockStepDetector {
  readonly #timer: NodeJS.Timeout;
  #ahead = Date.now() - performance.now();

  /** @param onStep called when it has happened */
  constructor(onStep: () => void) {
    this.#timer = setInterval(() => {
      const ahead = Date.now() - performance.now();
      const step = Math.abs(ahead - this.#ahead);
      if (step < STEP_MIN_MS) return;
      this.#ahead = ahead;
      onStep();
    }, LOOK_EVERY_MS);
    this.#timer.unref();
  }

  close(): void {
    clearInterval(this.#timer);
  }
}
