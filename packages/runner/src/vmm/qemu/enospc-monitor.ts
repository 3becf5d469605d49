import type { Logger } from 'pino';
import type { QmpClient } from './qmp.ts';

const RETRY_INTERVAL_MS = 1_000;

/**
 * A guest that is blocked on ENOSPC: QEMU pauses it when the host's disk has no space for its write (`werror=enospc`). The
 * write is not lost, and the guest is resumed every second until it succeeds. If it got the error instead, the guest
 * would make its file system read-only and drop its dirty pages.
 */
export class EnospcMonitor {
  readonly #qmp: QmpClient;
  readonly #log: Logger;
  readonly #tell: (line: string) => void;
  readonly #onResumed: () => void;
  #timer: NodeJS.Timeout | undefined;
  #held = false;
  /** While the guest is paused before the disk is full: whether it must stay so. */
  #isShort: (() => boolean) | undefined;

  /**
   * @param tell gets a line for the owner of the guest
   * @param onResumed called when the guest runs again
   */
  constructor(qmp: QmpClient, log: Logger, tell: (line: string) => void, onResumed: () => void) {
    this.#qmp = qmp;
    this.#log = log;
    this.#tell = tell;
    this.#onResumed = onResumed;
    qmp.onEvent(({ event, data }) => {
      if (event === 'BLOCK_IO_ERROR' && data['action'] === 'stop') this.#block();
    });
    qmp.onClose(() => clearInterval(this.#timer));
  }

  /** Whether the guest was blocked in the last second. Between two retries it may run, but too briefly to respond. */
  get waits(): boolean {
    return this.#timer !== undefined;
  }

  /** Whether the guest is blocked on ENOSPC, also since before this process started. */
  async look(): Promise<boolean> {
    const isBlocked = this.#isShort !== undefined || (await this.#status()) === 'io-error';
    if (isBlocked) this.#block();
    return isBlocked;
  }

  /**
   * Pauses the guest before the disk of the host is full, for as long as that is short of space. Does nothing while
   * another operation has stopped it.
   */
  async pause(isShort: () => boolean): Promise<void> {
    if (this.#held || this.#isShort !== undefined) return;
    this.#isShort = isShort;
    this.#block();
    try {
      await this.#qmp.execute('stop');
    } catch (error) {
      this.#isShort = undefined;
      throw error;
    }
  }

  /** A held guest is not resumed: the operation that stopped it relies on that. */
  hold(held: boolean): void {
    this.#held = held;
  }

  #block(): void {
    if (this.#timer !== undefined) return;
    this.#log.warn('the disk of the host is full: a guest is paused until there is space');
    this.#tell("the host's disk is full: the sandbox is paused until there is space");
    this.#timer = setInterval(() => {
      this.#tryAgain().catch((error: unknown) => this.#log.warn({ err: error }, 'a guest stays paused'));
    }, RETRY_INTERVAL_MS);
    this.#timer.unref();
  }

  async #tryAgain(): Promise<void> {
    if (this.#held) return;
    const status = await this.#status();
    // It may have been stopped meanwhile; then nothing may be sent any more.
    if (this.#held) return;
    if (this.#isShort?.() === true) {
      // The operation that had stopped it meanwhile has resumed it.
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
    this.#log.info('there is space on the disk again: a guest continues');
    this.#tell("the host's disk has space again: the sandbox continues");
    this.#onResumed();
  }

  async #status(): Promise<unknown> {
    return ((await this.#qmp.execute('query-status')) as { status?: unknown }).status;
  }
}
