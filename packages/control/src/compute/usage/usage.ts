/** The records of use: what runners send is stored here. */
import type { UsageHistoryMessage } from '@releap/contract/runner';
import type { Database } from '@releap/database';
import type { Logger } from 'pino';
import type { UsageSettings } from './settings.ts';
import { storeUsage } from './store-usage.ts';

export interface Usage {
  readonly settings: UsageSettings;
  /** @returns false when it could not be stored: the runner sends it again */
  store(runnerId: string, message: Pick<UsageHistoryMessage, 'seq' | 'pieces'>): Promise<boolean>;
}

export function createUsage({
  database,
  settings,
  log,
}: {
  database: Database;
  settings: UsageSettings;
  log: Logger;
}): Usage {
  return {
    settings,
    async store(runnerId, message) {
      try {
        if (settings.mode === 'on') await storeUsage(database, runnerId, message, settings.minuteDays);
        return true;
      } catch (error) {
        // The link stays: what a runner reports of its sandboxes matters more.
        log.warn({ err: error, runner: runnerId, seq: message.seq }, 'records of use could not be stored');
        return false;
      }
    },
  };
}
