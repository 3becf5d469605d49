import type { Database } from '@releap/database';
import type { Logger } from 'pino';
import type { PeriodicTask } from '../tasks/task.ts';
import type { Encryption } from './encryption.ts';
import { rewrapAll } from './rewrap.ts';

/** How often a new key is looked for. */
const LOOK_MS = 5_000;
/** Without a new key: another server may still have written with the older one, as long as it has not seen the newer. */
const REPEAT_MS = 10 * 60_000;

/**
 * Wraps values under older keys anew with the newest. Not leased: a server whose keys are unavailable must not keep the
 * others from it.
 */
export function createRewrap(options: {
  database: Database;
  encryption: Encryption;
  log: Logger;
}): PeriodicTask {
  const { database, encryption, log } = options;
  let lastKey: string | undefined;
  let due = 0;
  return {
    name: 'secret-rewrap',
    everyMs: LOOK_MS,
    leased: false,
    timeoutMs: 30 * 60_000,
    async run(signal) {
      // That no key is available was logged by the keys themselves.
      const key = await encryption.currentKey().catch(() => undefined);
      if (key === undefined || (key === lastKey && Date.now() < due)) return;
      due = Date.now() + REPEAT_MS;
      await rewrapAll(database, encryption, log, signal);
      lastKey = key;
    },
  };
}
