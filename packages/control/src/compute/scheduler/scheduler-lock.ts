import { setTimeout as sleep } from 'node:timers/promises';
import { queryAll, LOCKS, RELEAP_LOCK_SPACE, statement, type Database } from '@releap/database';
import type { PoolClient } from 'pg';

/** Longest wait of a lock holder for one row, in milliseconds: all placements of all servers wait for the holder. */
const ROW_WAIT_MS = 50;
/** How long one call is retried because of a locked row. */
const PATIENCE_MS = 10_000;
const PAUSE_MS = { first: 20, most: 500 };

/** The row lock limit applies while the scheduler lock is held, until the end of the transaction. */
const LOCK = statement(
  'schedule-lock',
  `select pg_advisory_xact_lock(${RELEAP_LOCK_SPACE}, ${LOCKS.schedule}), set_config('lock_timeout', '${ROW_WAIT_MS}', true)`,
);
const LOCK_NOT_AVAILABLE = '55P03';

/**
 * Runs a transaction that allocates capacity, while no other transaction of any server does. The lock comes before any
 * row, and is released by the commit: keep the work short. A row that another transaction has locked is waited for
 * without the scheduler lock: the transaction is rolled back and `work` is called again a moment later.
 * @throws 55P03 (lock not available) when a row stays locked for ten seconds
 */
export async function withSchedulerLock<T>(
  database: Database,
  work: (client: PoolClient) => Promise<T>,
): Promise<T> {
  const until = performance.now() + PATIENCE_MS;
  for (let pause = PAUSE_MS.first; ; pause = Math.min(PAUSE_MS.most, pause * 2)) {
    let held = false;
    try {
      return await database.transaction(async (client) => {
        await queryAll(client, LOCK);
        held = true;
        return work(client);
      });
    } catch (error) {
      const isLocked = (error as { code?: string }).code === LOCK_NOT_AVAILABLE;
      if (!held || !isLocked || performance.now() >= until) throw error;
    }
    await sleep(pause * (0.5 + Math.random()));
  }
}
