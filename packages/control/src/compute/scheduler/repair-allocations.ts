/**
 * A safety net. The rows of `host_allocations` are written by the statements that move sandboxes and snapshots, so none should ever be
 * wrong; one that is would refuse capacity that is free, or allocate the same twice, for good.
 */
import { queryAll, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';

const WRONG = statement<{ host: string; kept: unknown; counted: unknown }>(
  'allocations-wrong',
  'select host, kept, counted from wrong_host_allocations()',
);
/** $1 host */
const RECOUNT = statement('allocations-recount', 'select recount_host_allocation($1)');

/** Compares each host's row with what the host holds, and counts a wrong one again. */
export async function repairAllocations({
  database,
  log,
}: {
  database: Database;
  log: Logger;
}): Promise<void> {
  for (const { host, kept, counted } of await queryAll(database.pool, WRONG)) {
    await queryAll(database.pool, RECOUNT, [host]);
    log.error(
      { runner: host, kept, counted },
      'the allocations of a host were wrong, and were counted again',
    );
  }
}
