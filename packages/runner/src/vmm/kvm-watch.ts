import type { Logger } from 'pino';

/** Between two trials. The first one is not soon: a host that has just started may still be busy. */
const EVERY_MS = { first: 20 * 60_000, later: 60 * 60_000 };

export interface KvmWatchOptions {
  /** Whether a micro-VM runs under KVM. Ended by the signal. */
  tryKvm: (signal: AbortSignal) => Promise<boolean>;
  log: Logger;
  everyMs?: typeof EVERY_MS;
}

/**
 * Tries KVM again and again on a host that emulates guests because a trial failed: the host may have been busy. A running service
 * cannot change, as its templates belong to the emulator, but its log tells the operator that a restart makes guests ten times faster.
 */
export class KvmWatch {
  readonly #options: KvmWatchOptions;
  readonly #closing = new AbortController();
  #timer: NodeJS.Timeout | undefined;
  #trial: Promise<void> = Promise.resolve();

  constructor(options: KvmWatchOptions) {
    this.#options = options;
    this.#after('first');
  }

  /** Ends a trial that is under way. */
  async close(): Promise<void> {
    this.#closing.abort();
    clearTimeout(this.#timer);
    await this.#trial;
  }

  #after(which: keyof typeof EVERY_MS): void {
    if (this.#closing.signal.aborted) return;
    const { everyMs = EVERY_MS } = this.#options;
    this.#timer = setTimeout(() => {
      this.#trial = this.#try();
    }, everyMs[which]).unref();
  }

  async #try(): Promise<void> {
    const { tryKvm, log } = this.#options;
    const works = await tryKvm(this.#closing.signal).catch((error: unknown) => {
      log.debug({ err: error }, 'KVM could not be tried again');
      return false;
    });
    if (works)
      log.warn('KVM works now: guests are emulated, about ten times slower, until the service is restarted');
    else this.#after('later');
  }
}
