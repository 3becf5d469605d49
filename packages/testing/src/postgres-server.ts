/** The PostgreSQL server that test files share. */
import { migrate } from '@releap/database';
import { pino, type Logger } from 'pino';
import { startTestPostgres, type TestPostgres } from './postgres-instance.ts';

/** Connection string of the maintenance database of the server that all test files of a run share. */
export const POSTGRES_VARIABLE = 'RELEAP_TEST_POSTGRES';

export const quiet: Logger = pino({ level: process.env['RELEAP_TEST_LOG'] ?? 'silent' });

/** A server whose template database has the schema of this version. */
export function startMigratedPostgres(): Promise<TestPostgres> {
  return startTestPostgres({ prepare: async (url) => void (await migrate({ url, log: quiet })) });
}
