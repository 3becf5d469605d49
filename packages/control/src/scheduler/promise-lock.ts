import { all, LOCKS, RELEAP_LOCK_SPACE, statement, type Queryable } from '@releap/database';

const LOCK = statement(
  'schedule-lock',
  `select pg_advisory_xact_lock(${RELEAP_LOCK_SPACE}, ${LOCKS.schedule})`,
);

/** Until the end of this transaction nobody else promises room on any host. Take it before any row is touched. */
export async function promiseAlone(on: Queryable): Promise<void> {
  await all(on, LOCK);
}
