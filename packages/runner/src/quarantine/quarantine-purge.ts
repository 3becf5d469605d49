import type { Logger } from 'pino';
import type { Quarantine } from './quarantine.ts';

const PURGE_EVERY_MS = 60 * 60_000;
const DAY_MS = 24 * 60 * 60_000;

/** Removes what has been in quarantine for longer than the operator wants it kept. */
export class QuarantinePurge implements Disposable {
  readonly #timer: NodeJS.Timeout;

  /** @param days 0 keeps for ever */
  constructor(quarantines: readonly Quarantine[], days: number, log: Logger) {
    const purge = (): void => {
      if (days === 0) return;
      for (const quarantine of quarantines) {
        quarantine
          .purge(days * DAY_MS)
          .catch((error: unknown) => log.error({ err: error }, 'the quarantine could not be purged'));
      }
    };
    purge();
    this.#timer = setInterval(purge, PURGE_EVERY_MS).unref();
    const held = quarantines.flatMap(({ entries }) => entries.map(({ name }) => name));
    if (held.length > 0) {
      log.warn(
        { entries: held, days },
        'in quarantine: control does not name these; they are removed after days',
      );
    }
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
  }
}
