/**
 * `PATCH /fns/:name/config`: what changes in place, on the current version and on newer ones that are built or tried to replace it.
 * Otherwise a change right after a deploy would be gone when that version becomes the current one.
 */
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import {
  checkScaledownWindow,
  functionNotFound,
  notFound,
  quote,
  type FunctionConfig,
  type FunctionConfigUpdate,
} from '@releap/contract';
import { queryOne, statement } from '@releap/database';
import { IS_DELETED } from './deleted-name.ts';
import { functionByName } from './functions.ts';

/**
 * The function is locked first, so that its current version is still that when it is changed.
 * $1 project, $2 name, $3 max_concurrency, $4 scaledown_window_s, $5 timeout_s (null: as it is), $6 whether $7 is set, $7 max_instances
 */
const UPDATE = statement<FunctionConfig & { function_id: string }>(
  'function-config-update',
  `with f as (
     update functions set revision = revision + 1 where project_id = $1 and name = $2 and not (${IS_DELETED('functions')})
     returning id, current_version
   ), changed as (
   update function_versions v
      set max_concurrency = coalesce($3, v.max_concurrency), scaledown_window_s = coalesce($4, v.scaledown_window_s),
          timeout_s = coalesce($5, v.timeout_s), max_instances = case when $6 then $7 else v.max_instances end
     from f
    where v.function_id = f.id
      and (v.version = f.current_version
           or v.version > coalesce(f.current_version, 0) and v.template_state in ('building', 'pending'))
   returning v.function_id, v.version, v.max_concurrency, v.scaledown_window_s, v.timeout_s, v.max_instances
   )
   select c.* from changed c join f on f.id = c.function_id
    order by (c.version is not distinct from f.current_version) desc, c.version desc limit 1`,
);

/** @throws 400, 404 */
export async function updateConfig(
  {
    database,
    events,
    limits,
  }: { database: Database; events: EventBus; limits: { functionWindowMaxS: number } },
  projectId: string,
  name: string,
  body: FunctionConfigUpdate,
): Promise<FunctionConfig> {
  checkScaledownWindow(body.scaledown_window_s ?? 0, limits.functionWindowMaxS);
  const updated = await queryOne(database.pool, UPDATE, [
    projectId,
    name,
    body.max_concurrency ?? null,
    body.scaledown_window_s ?? null,
    body.timeout_s ?? null,
    body.max_instances !== undefined,
    body.max_instances ?? null,
  ]);
  if (updated === undefined) {
    if ((await functionByName(database.pool, projectId, name)) === undefined) throw functionNotFound(name);
    throw notFound(
      `function ${quote(name)} has no version that can serve: its image was not built`,
      'function_version_not_found',
    );
  }
  const { function_id: id, ...config } = updated;
  events.emit('functions-changed', [id]);
  return config;
}
