import type { Database } from '@releap/database';
import type { Snapshots } from './snapshots.ts';
import { queryAll, statement } from '@releap/database';
import type { TeardownStep } from '../../platform/teardown/step.ts';

const BATCH = 200;
/** Snapshots without children. $2 rows */
const LEAVES = statement<{ id: string }>(
  'teardown-snapshots',
  `select s.id from snapshots s where s.project_id = $1 and s.status not in ('deleting', 'deleted')
      and not exists (select 1 from snapshots c where c.parent_id = s.id and c.status <> 'deleted') limit $2`,
);
const LEFT = statement(
  'teardown-snapshots-left',
  `(select 1 from snapshots where project_id = $1 and status <> 'deleted' limit 1)
   union all (select 1 from snapshots where project_id = $1 and held limit 1)`,
);

export function snapshotTeardown({
  database,
  snapshots,
}: {
  database: Database;
  snapshots: Snapshots;
}): TeardownStep {
  return {
    name: 'snapshots',
    phase: 'stop',
    async run(projectId) {
      const rows = await queryAll(database.pool, LEAVES, [projectId, BATCH]);
      const ended = await snapshots.apply('delete', rows);
      if (rows.length === BATCH && ended.length > 0) return 'more';
      return (await queryAll(database.pool, LEFT, [projectId])).length;
    },
  };
}
