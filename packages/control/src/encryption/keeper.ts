import type { Database } from '@releap/database';
import type { Logger } from 'pino';
import { eraseUnused } from '../secrets/secrets.ts';
import type { Encryption } from './encryption.ts';
import { rewrapAll } from './rewrap.ts';

export interface Keeper {
  /** One pass; the timer does the same. */
  pass(): Promise<void>;
  close(): Promise<void>;
}

/** How often deleted values are looked for that nothing uses any more, and how often at a new key. */
const PASS_MS = 5_000;
/** Another server may have written with an older key for as long as it has not seen the newer one. */
const REWRAP_MS = 10 * 60_000;

/** In the background: values under older keys come under the newest, and deleted values go when nothing uses them. */
export function startKeeper(options: { database: Database; encryption: Encryption; log: Logger }): Keeper {
  const { database, encryption, log } = options;
  const stop = new AbortController();
  let running: Promise<void> | undefined;
  let lastKey: string | undefined;
  let due = 0;

  async function rewrap(): Promise<void> {
    // Its absence has been said by the keys themselves.
    const key = await encryption.currentKey().catch(() => undefined);
    if (key === undefined || (key === lastKey && Date.now() < due)) return;
    due = Date.now() + REWRAP_MS;
    await rewrapAll(database, encryption, log, stop.signal);
    lastKey = key;
  }

  const pass = (): Promise<void> =>
    (running ??= Promise.all([eraseUnused(database.pool), rewrap()])
      .then(() => undefined)
      .catch((error: unknown) =>
        log.warn({ err: error }, 'work on encrypted values failed and will be tried again'),
      )
      .finally(() => (running = undefined)));

  void pass();
  const timer = setInterval(() => void pass(), PASS_MS);
  return {
    pass,
    async close() {
      clearInterval(timer);
      stop.abort();
      await running;
    },
  };
}
