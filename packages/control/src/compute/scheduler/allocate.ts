import { setTimeout as sleep } from 'node:timers/promises';
import { LOCKS, RELEAP_LOCK_SPACE, type Database, type Queryable } from '@releap/database';
import type { PoolClient } from 'pg';

/** Longest wait for one row, in milliseconds: rows of hosts that the transaction has locked make others wait. */
const ROW_WAIT_MS = 500;
/** How long one call is retried because of a locked row. */
const PATIENCE_MS = 10_000;
const PAUSE_MS = { first: 20, most: 500 };

/**
 * Servers of the release before allocate under this lock alone: shared with each other, the new ones keep them out. The next release
 * drops it.
 */
const BEGIN = `begin; select pg_advisory_xact_lock_shared(${RELEAP_LOCK_SPACE}, ${LOCKS.schedule}); set local lock_timeout = ${ROW_WAIT_MS}`;
/** SQLSTATEs of a lock timeout and of a deadlock. */
const LOCKED = ['55P03', '40P01'];

/**
 * Runs a transaction that allocates capacity of hosts. The statement that moves a sandbox writes the row of its host
 * (`host_allocations`), which locks it until the commit: read the host after that, and throw when it is over its capacity. So of two
 * transactions one sees what the other has allocated, and those of different hosts do not wait for each other. Keep the
 * rest of it short. When another transaction has locked a row for long, this one is rolled back and `work` is called again a moment later.
 * @throws 55P03 (lock not available) when a row stays locked for ten seconds
 */
export function allocate<T>(database: Database, work: (client: PoolClient) => Promise<T>): Promise<T> {
  return retryingLocked(() => database.transaction(work, BEGIN));
}

/**
 * The same with statements that are sent at once (`Database.batch`): others wait for it while PostgreSQL works, and never for this process or
 * for a disk.
 */
export function allocateInBatch<T extends readonly Promise<unknown>[]>(
  database: Database,
  work: (on: Queryable) => readonly [...T],
): Promise<{ -readonly [K in keyof T]: Awaited<T[K]> }> {
  return retryingLocked(() => database.batch(work, { begin: BEGIN, unlocksBeforeFlush: true }));
}

async function retryingLocked<T>(run: () => Promise<T>): Promise<T> {
  const until = performance.now() + PATIENCE_MS;
  for (let pause = PAUSE_MS.first; ; pause = Math.min(PAUSE_MS.most, pause * 2)) {
    try {
      return await run();
    } catch (error) {
      const isLocked = LOCKED.includes((error as { code?: string }).code ?? '');
      if (!isLocked || performance.now() >= until) throw error;
    }
    await sleep(pause * (0.5 + Math.random()));
  }
}
