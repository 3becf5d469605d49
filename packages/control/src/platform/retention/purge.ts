/**
 * Purges ended rows after their retention, in bounded batches. The ledger is never purged; the audit log is dropped by
 * partitions (partitions.ts); idempotency keys have their own expiry.
 */
import { queryAll, statement, type Database, type Statement } from '@releap/database';

/** Ended rows of one kind that are removed after their retention. */
export interface Purge {
  /** Plural, lower case with hyphens; unique. */
  readonly what: string;
  /** Removes at most $2 rows that ended more than $1 days ago, and returns a row for each. */
  readonly statement: Statement<{ id: string }>;
}

export const purge = (what: string, sql: string): Purge => ({
  what,
  statement: statement<{ id: string }>(`purge-${what}`, sql),
});

const BATCH = 500;

/**
 * @param purges in this order
 * @param days how long ended rows are kept
 * @returns the number of removed rows by resource
 * @throws AggregateError after trying all
 */
export async function purgeEnded(
  database: Database,
  purges: readonly Purge[],
  days: number,
  signal: AbortSignal,
  batch = BATCH,
): Promise<Record<string, number>> {
  const removed: Record<string, number> = {};
  const failures: Error[] = [];
  for (const { what, statement: run } of purges) {
    try {
      for (;;) {
        if (signal.aborted) return removed;
        const rows = await queryAll(database.pool, run, [days, batch]);
        if (rows.length > 0) removed[what] = (removed[what] ?? 0) + rows.length;
        if (rows.length < batch) break;
      }
    } catch (error) {
      // One failure does not stop the others.
      failures.push(new Error(`${what} could not be purged`, { cause: error }));
    }
  }
  if (failures.length > 0) throw new AggregateError(failures, failures.map((one) => one.message).join('; '));
  return removed;
}
