import type { Logger } from 'pino';

const PING_EVERY_MS = 60_000;
const PING_DEADLINE_MS = 30_000;
/** A guest may be busy for minutes, and its owner may have stopped its agent's processor: this is told, not ended. */
const SILENT_AFTER = 3;

export interface AgentWatchOptions {
  /** Rejects when the agent does not answer in time. */
  ping: (deadlineMs: number) => Promise<void>;
  /** Whether it cannot be expected to answer now. */
  isExcused: () => boolean;
  /** Where its owner reads it. */
  tell: (line: string) => void;
  log: Logger;
  everyMs?: number;
}

/**
 * Asks the agent of a running sandbox from time to time whether it is there. A VMM that runs proves nothing: a guest that
 * hangs would look as if it ran.
 */
export class AgentWatch {
  readonly #options: AgentWatchOptions;
  readonly #timer: NodeJS.Timeout;
  #failures = 0;
  #isAsking = false;

  constructor(options: AgentWatchOptions) {
    this.#options = options;
    this.#timer = setInterval(() => void this.#ask(), options.everyMs ?? PING_EVERY_MS);
    this.#timer.unref();
  }

  /** Whether it has not answered several times in a row. */
  get isSilent(): boolean {
    return this.#failures >= SILENT_AFTER;
  }

  close(): void {
    clearInterval(this.#timer);
  }

  async #ask(): Promise<void> {
    const { ping, isExcused, tell, log } = this.#options;
    if (this.#isAsking || isExcused()) return;
    this.#isAsking = true;
    const wasSilent = this.isSilent;
    try {
      await ping(PING_DEADLINE_MS);
      this.#failures = 0;
      if (!wasSilent) return;
      log.info('the agent of a guest answers again');
      tell('the agent answers again');
    } catch (error) {
      this.#failures += 1;
      if (wasSilent || !this.isSilent) return;
      log.error({ err: error }, 'the agent of a guest does not answer; the guest may hang');
      tell('the agent does not answer: commands and file operations fail until it does');
    } finally {
      this.#isAsking = false;
    }
  }
}
