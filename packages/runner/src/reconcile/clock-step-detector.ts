const LOOK_EVERY_MS = 5_000;
/** Smaller differences come from a clock that is being slewed. */
const STEP_MIN_MS = 500;

/**
 * Detects that the host's clock was set or that the host was suspended: the guests' clocks do not follow. The monotonic
 * clock is not affected by either.
 */
export class ClockStepDetector {
  readonly #timer: NodeJS.Timeout;
  #ahead = Date.now() - performance.now();

  /** @param onStep called after a step */
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
