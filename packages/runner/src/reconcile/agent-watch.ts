import type { Logger } from 'pino';

const PING_EVERY_MS = 60_000;
const PING_DEADLINE_MS = 30_000;
/** A guest may be busy for minutes, or its owner may have stopped the agent's CPU: it is reported, not killed. */
const SILENT_AFTER = 3;

export interface AgentWatchOptions {
  /** Rejects when the agent does not answer in time. */
  ping: (deadlineMs: number) => Promise<void>;
  /** Called after each answer. What it rejects with is only logged. */
  onAnswer?: (deadlineMs: number) => Promise<void>;
  /** Whether the agent cannot answer now (paused, frozen). */
  isExcused: () => boolean;
  /** The console log, which its owner reads. */
  tell: (line: string) => void;
  log: Logger;
  everyMs?: number;
}

/**
 * Pings the agent of a running sandbox periodically. A running VMM does not prove that its guest runs: a hung guest would
 * look alive.
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

  /** Whether several pings in a row were not answered. */
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
      this.#options
        .onAnswer?.(PING_DEADLINE_MS)
        .catch((error: unknown) => log.debug({ err: error }, 'what follows a ping failed'));
      if (!wasSilent) return;
      log.info('the agent of a guest answers again');
      tell('the agent answers again');
    } catch (error) {
      // It was stopped after it was asked.
      if (isExcused()) return;
      this.#failures += 1;
      if (wasSilent || !this.isSilent) return;
      log.error({ err: error }, 'the agent of a guest does not answer; the guest may hang');
      tell('the agent does not answer: commands and file operations fail until it does');
    } finally {
      this.#isAsking = false;
    }
  }
}
