/** The end of the functions of a deleted project. Their rows stay until their invocations are recorded and charged. */
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import { queryAll, statement } from '@releap/database';
import type { TeardownStep } from '../../platform/teardown/step.ts';
import { deleteFunctionsOf } from './delete.ts';

/**
 * Whether a gateway may still report invocations of a deleted project, in SQL. Its instances end some time after its deletion, and a
 * gateway sends what it has served until it is taken: rows that are erased before would be stored, and charged, again.
 * $1 project, $2 how long reports take, in milliseconds
 */
export const MAY_REPORT = `(exists (select 1 from projects p where p.id = $1 and p.deleted_at > now() - $2 * interval '1 millisecond')
    or exists (select 1 from function_instances fi join sandboxes s on s.id = fi.sandbox_id
                where fi.project_id = $1 and (s.status <> 'deleted' or s.deleted_at > now() - $2 * interval '1 millisecond')))`;

/** $1 project, $2 as above */
const ERASE = statement(
  'teardown-function-rows',
  `with gone as (
     delete from functions f where f.project_id = $1 and not ${MAY_REPORT}
        and not exists (select 1 from invocations i where i.function_id = f.id)
        and not exists (select 1 from function_meters m where m.function_id = f.id and m.since is not null)
     returning f.id
   ), meters as (
     delete from function_meters m using gone where m.function_id = gone.id
   )
   select 1 from functions where project_id = $1 and id not in (select id from gone) limit 1`,
);

export function functionTeardown(context: {
  database: Database;
  events: EventBus;
  limits: { teardownGraceMs: number };
}): TeardownStep[] {
  const { database, limits } = context;
  return [
    // Their instances are sandboxes, which end with those of the project.
    {
      name: 'functions',
      phase: 'revoke',
      async run(projectId) {
        await deleteFunctionsOf(context, projectId);
        return 0;
      },
    },
    {
      name: 'function-rows',
      phase: 'erase',
      run: async (projectId) =>
        (await queryAll(database.pool, ERASE, [projectId, limits.teardownGraceMs])).length,
    },
  ];
}
