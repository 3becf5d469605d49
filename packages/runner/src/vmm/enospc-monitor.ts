import type { Logger } from 'pino';
import type { QmpClient } from './qmp.ts';

const RETRY_INTERVAL_MS = 1_000;

/**
 * Guests that stand because the host's disk had no room for what they wrote (`werror=enospc`): nothing of it is lost,
 * and each is let try again until there is room. To be told an error instead, a guest would make its file system
 * read-only and drop what it had not written yet.
 */
export class EnospcMonitor {
  readonly #qmp: QmpClient;
  readonly #log: Logger;
  readonly #tell: (line: string) => void;
  readonly #onGoesOn: () => void;
  #timer: NodeJS.Timeout | undefined;
  #held = false;
  /** While the guest is paused before the disk is full: whether it must stay so. */
  #isShort: (() => boolean) | undefined;

  /**
   * @param tell is given a line for the one whose guest it is
   * @param onGoesOn called when it has stood and goes on
   */
  constructor(qmp: QmpClient, log: Logger, tell: (line: string) => void, onGoesOn: () => void) {
    this.#qmp = qmp;
    this.#log = log;
    this.#tell = tell;
    this.#onGoesOn = onGoesOn;
    qmp.onEvent(({ event, data }) => {
      if (event === 'BLOCK_IO_ERROR' && data['action'] === 'stop') this.#stands();
    });
    qmp.onClose(() => clearInterval(this.#timer));
  }

  /** Whether the guest has stood in the last second; between two tries it may run for a moment, too short to answer. */
  get waits(): boolean {
    return this.#timer !== undefined;
  }

  /** Whether the guest stands for want of room, since before this process began, too. */
  async look(): Promise<boolean> {
    const stands = this.#isShort !== undefined || (await this.#status()) === 'io-error';
    if (stands) this.#stands();
    return stands;
  }

  /**
   * Pauses the guest before the disk of the host is full, for as long as that is short of space. Does nothing while
   * somebody else has stopped it.
   */
  async pause(isShort: () => boolean): Promise<void> {
    if (this.#held || this.#isShort !== undefined) return;
    this.#isShort = isShort;
    this.#stands();
    try {
      await this.#qmp.execute('stop');
    } catch (error) {
      this.#isShort = undefined;
      throw error;
    }
  }

  /** While it is held a guest is not let go on: whoever stopped it relies on that. */
  hold(held: boolean): void {
    this.#held = held;
  }

  #stands(): void {
    if (this.#timer !== undefined) return;
    this.#log.warn('the disk of the host is full: a guest stands until there is room');
    this.#tell("the host's disk is full: the sandbox stands until there is room");
    this.#timer = setInterval(() => {
      this.#tryAgain().catch((error: unknown) => this.#log.warn({ err: error }, 'a guest goes on standing'));
    }, RETRY_INTERVAL_MS);
    this.#timer.unref();
  }

  async #tryAgain(): Promise<void> {
    if (this.#held) return;
    const status = await this.#status();
    // It may have been stopped meanwhile; then nothing may be sent any more.
    if (this.#held) return;
    if (this.#isShort?.() === true) {
      // Whoever had stopped it meanwhile has let it continue.
      if (status === 'running') await this.#qmp.execute('stop');
      return;
    }
    if (status === 'io-error' || (this.#isShort !== undefined && status === 'paused')) {
      this.#isShort = undefined;
      await this.#qmp.execute('cont');
      return;
    }
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.#isShort = undefined;
    this.#log.info('there is room on the disk again: a guest goes on');
    this.#tell("the host's disk has room again: the sandbox goes on");
    this.#onGoesOn();
  }

  async #status(): Promise<unknown> {
    return ((await this.#qmp.execute('query-status')) as { status?: unknown }).status;
  }
}
