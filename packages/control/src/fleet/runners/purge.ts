import { queryAll, statement, type Database } from '@releap/database';

/** Lost hosts without references. $1 days */
const RUNNERS = statement<{ id: string }>(
  'purge-runners',
  `delete from runners where id in (
       select r.id from runners r
        where r.status = 'lost' and r.last_seen_at < now() - $1 * interval '1 day'
          and not exists (select 1 from sandbox_states s where s.runner_id = r.id)
          and not exists (select 1 from snapshot_states s where s.runner_id = r.id)
        limit 100 for update skip locked)
     returning id`,
);

/**
 * Forgets lost hosts. May scan all sandboxes for each long-lost host (an index on their host would make every transition
 * more expensive), so it runs rarely.
 */
export async function purgeLostRunners(database: Database, days: number): Promise<number> {
  return (await queryAll(database.pool, RUNNERS, [days])).length;
}
