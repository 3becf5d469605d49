/** The PostgreSQL server that test files share. */
import { migrate } from '@releap/database';
import { quiet } from './logging.ts';
import { startTestPostgres, type TestPostgres } from './postgres-instance.ts';

/** Connection string of the maintenance database of the server that all test files of a run share. */
export const POSTGRES_VARIABLE = 'RELEAP_TEST_POSTGRES';

/** A server whose template database has the schema of this version. */
export function startMigratedPostgres(): Promise<TestPostgres> {
  return startTestPostgres({ prepare: async (url) => void (await migrate({ url, log: quiet })) });
}
