/** Removes the rows of deleted volumes and of the volumes of deleted projects. */
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import { queryAll, statement, type Database } from '@releap/database';
import type { TeardownStep } from '../../platform/teardown/step.ts';
import * as sql from './copy-statements.ts';

/** Their blobs are no longer named, and the store's garbage collector removes them. $1 rows */
const ERASE_CONTENT = statement(
  'volumes-erase-content',
  `with gone as (select id from volumes where deleted_at is not null and erased_at is null order by deleted_at limit $1),
   conflicts as (delete from volume_conflicts where volume_id in (select id from gone)),
   uploads as (delete from volume_uploads where volume_id in (select id from gone)),
   blobs as (delete from volume_blobs where volume_id in (select id from gone)),
   manifests as (delete from volume_manifests where volume_id in (select id from gone))
   update volumes set head = 0 where id in (select id from gone) and head <> 0 returning id`,
);
/** A host that was told removes its copy; one that is forgotten has none (`FORGET`). $1 rows */
const ERASED = statement(
  'volumes-erased',
  `update volumes set erased_at = now() where id in (
     select v.id from volumes v where v.deleted_at is not null and v.erased_at is null
        and not exists (select 1 from volume_copies c where c.volume_id = v.id)
        and not exists (select 1 from volume_manifests m where m.volume_id = v.id) order by v.deleted_at limit $1)
   returning id`,
);
const BATCH = 100;

/** Safe to repeat, and to run twice at once. @param keepMs how long copies with changes on forgotten hosts are reported */
export async function eraseDeleted(
  { pool }: Database,
  keepMs: number,
  onChanged: (changes: readonly AssignmentChange[]) => void,
): Promise<void> {
  onChanged(await queryAll(pool, sql.FORGET, [keepMs]));
  await queryAll(pool, ERASE_CONTENT, [BATCH]);
  await queryAll(pool, ERASED, [BATCH]);
}

/** Those of a project that no sandbox may still use. $1 project, $2 rows */
const RETIRE = statement<{ id: string }>(
  'teardown-volumes',
  `update volumes v set name = name || '-deleted', deleted_at = now(), updated_at = now()
    where v.id in (
      select v.id from volumes v where v.project_id = $1 and v.deleted_at is null
         and not exists (select 1 from volume_attachments a join sandbox_states s on s.id = a.sandbox_id
                          where a.volume_id = v.id and s.status <> 'deleted') limit $2)
   returning v.id`,
);
/** $1 project, $2 rows */
const REMOVE = statement<{ id: string }>(
  'teardown-volumes-remove',
  `with erased as (select id from volumes where project_id = $1 and erased_at is not null limit $2),
   attachments as (delete from volume_attachments where volume_id in (select id from erased))
   delete from volumes where id in (select id from erased) returning id`,
);
/** $1 project */
const LEFT = statement('teardown-volumes-left', 'select 1 from volumes where project_id = $1 limit 1');

export function volumeTeardown(
  database: Database,
  keepMs: number,
  onChanged: (changes: readonly AssignmentChange[]) => void,
): TeardownStep {
  return {
    name: 'volumes',
    phase: 'erase',
    async run(projectId) {
      const retired = await queryAll(database.pool, RETIRE, [projectId, BATCH]);
      if (retired.length > 0)
        onChanged(await queryAll(database.pool, sql.DELETE_COPIES, [retired.map(({ id }) => id)]));
      await eraseDeleted(database, keepMs, onChanged);
      const removed = await queryAll(database.pool, REMOVE, [projectId, BATCH]);
      if (retired.length === BATCH || removed.length === BATCH) return 'more';
      return (await queryAll(database.pool, LEFT, [projectId])).length;
    },
  };
}
