/**
 * A thread that keeps placements waiting, releases them when it is told, and says when one is committed: the main thread does nothing
 * meanwhile.
 */
import { workerData } from 'node:worker_threads';
import { LOCKS, openDatabase, RELEAP_LOCK_SPACE } from '@releap/database';
import { quiet } from '@releap/testing/logging';

export interface HeldPlacement {
  url: string;
  sandboxId: string;
  /** See `STEP`. */
  steps: Int32Array<SharedArrayBuffer>;
}
/** Elements of `steps`, each of which becomes 1. */
export const STEP = { held: 0, goOn: 1, committed: 2 } as const;

if (workerData !== null) await run(workerData as HeldPlacement);

async function run({ url, sandboxId, steps }: HeldPlacement): Promise<void> {
  const done = (step: number): void => {
    Atomics.store(steps, step, 1);
    Atomics.notify(steps, step);
  };
  await using database = openDatabase({ url, log: quiet });
  await database.transaction(async (client) => {
    await client.query('select pg_advisory_xact_lock($1, $2)', [RELEAP_LOCK_SPACE, LOCKS.schedule]);
    done(STEP.held);
    Atomics.wait(steps, STEP.goOn, 0);
  });
  const placed = (): Promise<{ rowCount: number | null }> =>
    database.pool.query(`select 1 from sandboxes where id = $1 and status = 'assigned'`, [sandboxId]);
  while ((await placed()).rowCount === 0);
  done(STEP.committed);
}
