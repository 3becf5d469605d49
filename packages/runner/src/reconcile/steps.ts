import type { Logger } from 'pino';

/** A step that broke (a full disk, a tool that failed) is done again after this long, then twice as long. */
const RETRY_MS = { first: 1_000, most: 60_000 };

type Work = (signal: AbortSignal) => Promise<void>;

/** What is done with one sandbox, one step after the other: steps never overlap, and the newest is what counts. */
export class Steps {
  readonly #log: Logger;
  readonly #onIdle: () => void;
  #step: { controller: AbortController; done: Promise<void> } | undefined;
  #retry: NodeJS.Timeout | undefined;
  #retryMs = RETRY_MS.first;

  /** @param onIdle called when a step has ended and no other has begun */
  constructor(log: Logger, onIdle: () => void) {
    this.#log = log;
    this.#onIdle = onIdle;
  }

  /** Whether one is under way. */
  get busy(): boolean {
    return this.#step !== undefined;
  }

  /** Resolves when none is under way. */
  async idle(): Promise<void> {
    while (this.#step) await this.#step.done;
  }

  /**
   * Begins a step. The one under way is interrupted, and waited for; one that breaks is begun again later, so that
   * nothing stays half done.
   */
  begin(work: Work): void {
    clearTimeout(this.#retry);
    const previous = this.#step;
    previous?.controller.abort(new Error('superseded by a newer assignment'));
    const controller = new AbortController();
    const done = (async () => {
      await previous?.done;
      try {
        await work(controller.signal);
        this.#retryMs = RETRY_MS.first;
      } catch (error) {
        this.#log.error({ err: error }, 'a step of the sandbox broke');
        if (!controller.signal.aborted) this.#beginLater(work);
      } finally {
        this.#end(controller);
      }
    })();
    this.#step = { controller, done };
  }

  /**
   * Does something between two steps: none begins before that is done. What it throws is its caller's. The signal is aborted
   * when a step waits for it.
   */
  async hold<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    // Not by way of idle(): between its end and ours another one that waits would begin, too.
    while (this.#step) await this.#step.done;
    const controller = new AbortController();
    const result = work(controller.signal);
    this.#step = { controller, done: result.then(ignore, ignore) };
    try {
      return await result;
    } finally {
      this.#end(controller);
    }
  }

  /** Interrupts the step under way and waits for its end; what broke is not begun again. */
  async interrupt(reason: string): Promise<void> {
    this.#step?.controller.abort(new Error(reason));
    await this.idle();
    clearTimeout(this.#retry);
  }

  #beginLater(work: Work): void {
    this.#retry = setTimeout(() => this.begin(work), this.#retryMs).unref();
    this.#retryMs = Math.min(this.#retryMs * 2, RETRY_MS.most);
  }

  #end(controller: AbortController): void {
    if (this.#step?.controller !== controller) return;
    this.#step = undefined;
    this.#onIdle();
  }
}

function ignore(): void {}
