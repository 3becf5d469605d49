import type { Logger } from 'pino';

/** Delay before a failed step (full disk, failed tool) is retried; it doubles with each failure. */
const RETRY_MS = { first: 1_000, most: 60_000 };

type Work = (signal: AbortSignal) => Promise<void>;

/** A position in the step queue of a sandbox; no other step runs while it is held. */
export interface Lease {
  /** Resolves when all earlier steps have ended. Rejects with the signal's reason. */
  acquired(signal: AbortSignal): Promise<void>;
  /** Releases it; the next step starts. */
  release(): void;
  /** Releases it when the promise has settled; `release` has no effect after that. */
  releaseAfter(work: Promise<unknown>): void;
}

interface Step {
  controller: AbortController;
  done: Promise<void>;
}

/** Step queue of a sandbox: steps run one after the other, in the order of their requests. */
export class StepQueue {
  readonly #log: Logger;
  readonly #onIdle: () => void;
  /** Running and queued steps, oldest first. */
  readonly #steps = new Set<Step>();
  #retry: NodeJS.Timeout | undefined;
  #retryMs = RETRY_MS.first;

  /** @param onIdle called when a step has ended and the queue is empty */
  constructor(log: Logger, onIdle: () => void) {
    this.#log = log;
    this.#onIdle = onIdle;
  }

  /** Whether a step is running. */
  get busy(): boolean {
    return this.#steps.size > 0;
  }

  /** Resolves when no step is running. */
  async idle(): Promise<void> {
    for (let last = this.#last; last !== undefined; last = this.#last) await last.done;
  }

  /**
   * Queues a step. Earlier steps are interrupted and awaited; a step that fails is retried later, so that no state stays
   * inconsistent.
   */
  begin(work: Work): void {
    clearTimeout(this.#retry);
    this.#interrupt('superseded by a newer assignment');
    this.#append(async (signal) => {
      try {
        await work(signal);
        this.#retryMs = RETRY_MS.first;
      } catch (error) {
        this.#log.error({ err: error }, 'a step of the sandbox failed and will be retried');
        if (!signal.aborted) this.#beginLater(work);
      }
    });
  }

  /**
   * Runs a function after the steps that were requested before, and before those that are requested later. Errors go to the
   * caller. The signal is aborted when a step waits for it.
   */
  async runExclusive<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const result = Promise.withResolvers<T>();
    this.#append(async (signal) => {
      await work(signal).then(result.resolve, result.reject);
    });
    return await result.promise;
  }

  /** Takes a position in the queue now. The caller must release it. */
  acquire(): Lease {
    const acquired = Promise.withResolvers<void>();
    const ended = Promise.withResolvers<void>();
    this.#append(async () => {
      acquired.resolve();
      await ended.promise;
    });
    let isKept = false;
    return {
      acquired: async (signal) => {
        signal.throwIfAborted();
        const aborted = Promise.withResolvers<never>();
        const onAbort = (): void => aborted.reject(signal.reason);
        signal.addEventListener('abort', onAbort, { once: true });
        try {
          await Promise.race([acquired.promise, aborted.promise]);
        } finally {
          signal.removeEventListener('abort', onAbort);
        }
      },
      release: () => {
        if (!isKept) ended.resolve();
      },
      releaseAfter: (work) => {
        isKept = true;
        work.then(ignore, ignore).then(ended.resolve, ignore);
      },
    };
  }

  /** Interrupts the running steps and waits for their end; failed steps are not retried. */
  async interrupt(reason: string): Promise<void> {
    this.#interrupt(reason);
    await this.idle();
    clearTimeout(this.#retry);
  }

  get #last(): Step | undefined {
    return [...this.#steps].at(-1);
  }

  #interrupt(reason: string): void {
    for (const { controller } of this.#steps) controller.abort(new Error(reason));
  }

  /** @param work must not reject */
  #append(work: Work): void {
    const previous = this.#last;
    const controller = new AbortController();
    const step: Step = { controller, done: Promise.resolve() };
    this.#steps.add(step);
    step.done = (async () => {
      await previous?.done;
      try {
        await work(controller.signal);
      } finally {
        this.#steps.delete(step);
        if (!this.busy) this.#onIdle();
      }
    })();
  }

  #beginLater(work: Work): void {
    this.#retry = setTimeout(() => this.begin(work), this.#retryMs).unref();
    this.#retryMs = Math.min(this.#retryMs * 2, RETRY_MS.most);
  }
}

function ignore(): void {}
