import type { Database } from '@releap/database';
import type { Logger } from 'pino';
import type { PeriodicTask } from '../work/task.ts';
import type { Encryption } from './encryption.ts';
import { rewrapAll, type EncryptedTable } from './rewrap.ts';

/** Interval of the check for a new key. */
const LOOK_MS = 5_000;
/** Interval without a new key: another server that has not seen the new key yet may still write with the old one. */
const REPEAT_MS = 10 * 60_000;

/**
 * Rewraps values of older keys with the current one. Not leased: a server whose keys are unavailable must not keep the
 * others from doing it.
 */
export function createRewrap(options: {
  database: Database;
  encryption: Encryption;
  log: Logger;
  tables: readonly EncryptedTable[];
}): PeriodicTask {
  const { database, encryption, log, tables } = options;
  let lastKey: string | undefined;
  let due = 0;
  return {
    name: 'secret-rewrap',
    everyMs: LOOK_MS,
    leased: false,
    timeoutMs: 30 * 60_000,
    async run(signal) {
      // The key provider has logged that no key is available.
      const key = await encryption.currentKey().catch(() => undefined);
      if (key === undefined || (key === lastKey && Date.now() < due)) return;
      due = Date.now() + REPEAT_MS;
      await rewrapAll(database, encryption, tables, log, signal);
      lastKey = key;
    },
  };
}
