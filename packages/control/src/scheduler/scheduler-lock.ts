import { all, LOCKS, RELEAP_LOCK_SPACE, statement, type Database } from '@releap/database';
import type { PoolClient } from 'pg';

const LOCK = statement(
  'schedule-lock',
  `select pg_advisory_xact_lock(${RELEAP_LOCK_SPACE}, ${LOCKS.schedule})`,
);

/**
 * Runs a transaction that allocates capacity, while no other transaction of any server does. The lock comes before any
 * row, and is released by the commit: keep the work short.
 */
export function withSchedulerLock<T>(
  database: Database,
  work: (client: PoolClient) => Promise<T>,
): Promise<T> {
  return database.transaction(async (client) => {
    await all(client, LOCK);
    return work(client);
  });
}
