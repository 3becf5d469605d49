import type { Database } from '@releap/database';
import type { Authenticator } from './authenticator.ts';
import type { Logger } from 'pino';
import type { Module } from '../module.ts';
import { apiKeyTeardown } from './api-keys.ts';

/** Interval at which the last use of keys is written. */
const LAST_USED_MS = 30_000;

export interface AuthModuleOptions {
  authenticator: Authenticator;
  cleanup: AsyncDisposableStack;
  database: Database;
  log: Logger;
}

export function authModule({ authenticator, cleanup, database, log }: AuthModuleOptions): Module {
  cleanup.defer(() =>
    authenticator
      .flush()
      .catch((error: unknown) => log.warn({ err: error }, 'the last use of API keys could not be written')),
  );
  return {
    name: 'auth',
    tasks: [
      { name: 'api-key-last-use', everyMs: LAST_USED_MS, leased: false, run: () => authenticator.flush() },
    ],
    teardown: [apiKeyTeardown(database)],
  };
}
