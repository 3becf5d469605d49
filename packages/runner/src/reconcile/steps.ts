import type { Logger } from 'pino';

/** A step that broke (a full disk, a tool that failed) is done again after this long, then twice as long. */
const RETRY_MS = { first: 1_000, most: 60_000 };

type Work = (signal: AbortSignal) => Promise<void>;

/** A place in the order of what is done with a sandbox, during which nothing else is. */
export interface Turn {
  /** Resolves when everything before it is done. Rejects with the signal's reason. */
  begun(signal: AbortSignal): Promise<void>;
  /** Ends it; what was asked for behind it begins. */
  end(): void;
  /** Ends it when that has settled; `end` does nothing any more. */
  endAfter(work: Promise<unknown>): void;
}

interface Step {
  controller: AbortController;
  done: Promise<void>;
}

/** What is done with one sandbox, one step after the other, in the order in which it was asked for. */
export class Steps {
  readonly #log: Logger;
  readonly #onIdle: () => void;
  /** Those under way or waiting, oldest first. */
  readonly #steps = new Set<Step>();
  #retry: NodeJS.Timeout | undefined;
  #retryMs = RETRY_MS.first;

  /** @param onIdle called when a step has ended and no other waits */
  constructor(log: Logger, onIdle: () => void) {
    this.#log = log;
    this.#onIdle = onIdle;
  }

  /** Whether one is under way. */
  get busy(): boolean {
    return this.#steps.size > 0;
  }

  /** Resolves when none is under way. */
  async idle(): Promise<void> {
    for (let last = this.#last; last !== undefined; last = this.#last) await last.done;
  }

  /**
   * Begins a step. Those before it are interrupted, and waited for; one that breaks is begun again later, so that
   * nothing stays half done.
   */
  begin(work: Work): void {
    clearTimeout(this.#retry);
    this.#interrupt('superseded by a newer assignment');
    this.#append(async (signal) => {
      try {
        await work(signal);
        this.#retryMs = RETRY_MS.first;
      } catch (error) {
        this.#log.error({ err: error }, 'a step of the sandbox broke');
        if (!signal.aborted) this.#beginLater(work);
      }
    });
  }

  /**
   * Does something after what was asked for before, and before what is asked for later. What it throws is its caller's. The
   * signal is aborted when a step waits for it.
   */
  async runExclusive<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const result = Promise.withResolvers<T>();
    this.#append(async (signal) => {
      await work(signal).then(result.resolve, result.reject);
    });
    return await result.promise;
  }

  /** Takes a place in the order now. To be ended, whatever happens. */
  takeTurn(): Turn {
    const begun = Promise.withResolvers<void>();
    const ended = Promise.withResolvers<void>();
    this.#append(async () => {
      begun.resolve();
      await ended.promise;
    });
    let isKept = false;
    return {
      begun: async (signal) => {
        signal.throwIfAborted();
        const aborted = Promise.withResolvers<never>();
        const onAbort = (): void => aborted.reject(signal.reason);
        signal.addEventListener('abort', onAbort, { once: true });
        try {
          await Promise.race([begun.promise, aborted.promise]);
        } finally {
          signal.removeEventListener('abort', onAbort);
        }
      },
      end: () => {
        if (!isKept) ended.resolve();
      },
      endAfter: (work) => {
        isKept = true;
        work.then(ignore, ignore).then(ended.resolve, ignore);
      },
    };
  }

  /** Interrupts the steps under way and waits for their end; what broke is not begun again. */
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
