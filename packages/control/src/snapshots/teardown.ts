import { queryAll, statement } from '@releap/database';
import type { ControlContext } from '../context.ts';
import type { TeardownStep } from '../teardown/step.ts';

/** Snapshots without children. */
const LEAVES = statement<{ id: string }>(
  'teardown-snapshots',
  `select s.id from snapshots s where s.project_id = $1 and s.status <> 'deleted'
      and not exists (select 1 from snapshots c where c.parent_id = s.id and c.status <> 'deleted') limit 200`,
);
const LEFT = statement(
  'teardown-snapshots-left',
  `(select 1 from snapshots where project_id = $1 and status <> 'deleted' limit 1)
   union all (select 1 from snapshots where project_id = $1 and held limit 1)`,
);

export function snapshotTeardown({
  database,
  snapshots,
}: Pick<ControlContext, 'database' | 'snapshots'>): TeardownStep {
  return {
    name: 'snapshots',
    phase: 'stop',
    async run(projectId) {
      await snapshots.apply('delete', await queryAll(database.pool, LEAVES, [projectId]));
      return (await queryAll(database.pool, LEFT, [projectId])).length;
    },
  };
}
