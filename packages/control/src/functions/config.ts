/** `PATCH /fns/:name/config`: what changes in place on the current version. */
import {
  functionNotFound,
  notFound,
  quote,
  type FunctionConfig,
  type FunctionConfigUpdate,
} from '@releap/contract';
import { queryOne, statement } from '@releap/database';
import type { ControlContext } from '../context.ts';
import { functionByName } from './functions.ts';

/**
 * The function is locked first, so that its version is the current one when it is changed.
 * $1 project, $2 name, $3 max_concurrency, $4 scaledown_window_s, $5 timeout_s (null: as it is), $6 whether $7 is set, $7 max_instances
 */
const UPDATE = statement<FunctionConfig & { function_id: string }>(
  'function-config-update',
  `with f as (
     update functions set revision = revision + 1 where project_id = $1 and name = $2 and current_version is not null
     returning id, current_version
   )
   update function_versions v
      set max_concurrency = coalesce($3, v.max_concurrency), scaledown_window_s = coalesce($4, v.scaledown_window_s),
          timeout_s = coalesce($5, v.timeout_s), max_instances = case when $6 then $7 else v.max_instances end
     from f where v.function_id = f.id and v.version = f.current_version
   returning v.function_id, v.version, v.max_concurrency, v.scaledown_window_s, v.timeout_s, v.max_instances`,
);

/** @throws 404 */
export async function updateConfig(
  { database, events }: Pick<ControlContext, 'database' | 'events'>,
  projectId: string,
  name: string,
  body: FunctionConfigUpdate,
): Promise<FunctionConfig> {
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
    throw notFound(`function ${quote(name)} has no current version yet: its first image is not built`);
  }
  const { function_id: id, ...config } = updated;
  events.emit('functions-changed', [id]);
  return config;
}
