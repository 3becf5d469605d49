import { isDatabaseUnavailable } from '@releap/database';

const PAUSES_MS = [100, 400, 1_000];

/**
 * Retries `work` after transient errors of the database: no connection, a deadlock, a lock timeout. Any other error is
 * thrown at once.
 */
export async function retryOnDatabaseError<T>(work: () => Promise<T>): Promise<T> {
  for (const pause of PAUSES_MS) {
    try {
      return await work();
    } catch (error) {
      if (!isDatabaseUnavailable(error)) throw error;
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
  return work();
}
