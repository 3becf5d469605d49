import { queryAll, statement, type Database } from '@releap/database';

const BATCH = 500;

/** $1 days, $2 rows */
const OPERATOR_AUDIT = statement<{ id: string }>(
  'purge-operator-audit',
  `delete from operator_audit where id in (
     select id from operator_audit where created_at < now() - $1 * interval '1 day' order by created_at limit $2)
   returning id`,
);

/** In batches, until none is left. @returns the number of removed entries */
export async function purgeOperatorAudit(
  database: Database,
  days: number,
  signal: AbortSignal,
  batch = BATCH,
): Promise<number> {
  for (let removed = 0; ; ) {
    if (signal.aborted) return removed;
    const { length } = await queryAll(database.pool, OPERATOR_AUDIT, [days, batch]);
    removed += length;
    if (length < batch) return removed;
  }
}
