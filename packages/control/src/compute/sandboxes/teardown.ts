import type { Database } from '@releap/database';
import type { Lifecycle } from './lifecycle.ts';
import { queryAll, statement } from '@releap/database';
import { batchStep, type TeardownStep } from '../../platform/teardown/step.ts';

const BATCH = 200;
/** $2 rows */
const LIVE = statement<{ id: string }>(
  'teardown-sandboxes',
  `select id from sandboxes where project_id = $1 and status not in ('deleting', 'deleted') limit $2`,
);
/** Their hosts may still hold data of them, until these confirm the deletion. */
const LEFT = statement(
  'teardown-sandboxes-left',
  `(select 1 from sandboxes where project_id = $1 and status <> 'deleted' limit 1)
   union all (select 1 from sandboxes where project_id = $1 and held limit 1)`,
);

export function sandboxTeardown({
  database,
  lifecycle,
}: {
  database: Database;
  lifecycle: Lifecycle;
}): TeardownStep[] {
  return [
    {
      name: 'sandboxes',
      phase: 'stop',
      async run(projectId) {
        const rows = await queryAll(database.pool, LIVE, [projectId, BATCH]);
        const ended = await lifecycle.apply(
          'delete',
          rows.map(({ id }) => ({ id, project_id: projectId })),
        );
        if (rows.length === BATCH && ended.length > 0) return 'more';
        return (await queryAll(database.pool, LEFT, [projectId])).length;
      },
    },
    // Rows of ended sandboxes stay for billing records, without tenants' data.
    batchStep(database, {
      name: 'environments',
      phase: 'erase',
      text: `with ended as (
               select id from sandboxes where project_id = $1 and status = 'deleted'
                  and (env_bytes > 0 or spec -> 'egress_policy' <> 'null') limit $2
             ), gone as (delete from sandbox_env where sandbox_id in (select id from ended))
             update sandboxes set env_bytes = 0, spec = spec || '{"egress_policy": null}' where id in (select id from ended)
             returning 1`,
    }),
  ];
}
