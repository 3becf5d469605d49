/**
 * The states of versions after their deploy: `building` → `pending` → `published` or `failed`. Each change is one statement that
 * locks the function before its version. The current version only moves to newer ones. A version that is activated `now` becomes the
 * current one with its deploy, or when its image is built; one that is activated `when_ready` when it is published.
 */
import type { RootSource } from '@releap/contract';
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';

export interface VersionStates {
  /** The image of a building version is built: it is activated, if it is to be now, and its first instance can be tried. @returns false when it is not building any more */
  built(versionId: string, root: RootSource): Promise<boolean>;
  /**
   * An instance of a pending version has listened: it becomes the current one, unless a newer one is.
   * @param options.warning why instances of a version with `fn_ready` start the handler, if they do
   * @param options.root pins what was tried: the same reference of a registry may name another image later
   * @returns false when it is not pending any more
   */
  publish(versionId: string, options?: { warning?: string | null; root?: RootSource }): Promise<boolean>;
  /** A version that serves has a template now: there is nothing to warn of any more. */
  captured(versionId: string): Promise<void>;
  /** A pending or building version cannot serve. @returns false when it is neither any more */
  fail(versionId: string, reason: string): Promise<boolean>;
}

/** Whether nothing that serves would be replaced: there is no current version, or it has failed. */
export const NOTHING_SERVES = (fn: string): string =>
  `(${fn}.current_version is null or exists (
     select 1 from function_versions c
      where c.function_id = ${fn}.id and c.version = ${fn}.current_version and c.template_state = 'failed'))`;

/** $1 version */
const LOCK = `select id from functions where id = (select function_id from function_versions where id = $1) for no key update`;

/** $1 version, $2 root */
const BUILT = statement<{ id: string }>(
  'function-version-built',
  `with locked as (${LOCK}), moved as (
     update function_versions v set template_state = 'pending', root = $2::jsonb
       from locked where v.id = $1 and v.function_id = locked.id and v.template_state = 'building'
     returning v.function_id, v.version, v.activate
   )
   update functions f set revision = f.revision + 1,
          current_version = case when m.activate = 'now' or ${NOTHING_SERVES('f')} then greatest(f.current_version, m.version) else f.current_version end
     from moved m where f.id = m.function_id returning f.id`,
);

/** $1 version, $2 warning, $3 root (null: as it is) */
const PUBLISH = statement<{ id: string }>(
  'function-version-publish',
  `with locked as (${LOCK}), moved as (
     update function_versions v set template_state = 'published', template_error = $2, root = coalesce($3::jsonb, v.root)
       from locked where v.id = $1 and v.function_id = locked.id and v.template_state = 'pending'
     returning v.function_id, v.version
   )
   update functions f set current_version = greatest(f.current_version, m.version), revision = f.revision + 1
     from moved m where f.id = m.function_id returning f.id`,
);

/** $1 version */
const CAPTURED = statement(
  'function-version-captured',
  `update function_versions set template_error = null
    where id = $1 and template_state = 'published' and template_error is not null`,
);

/** $1 version, $2 reason */
const FAIL = statement<{ id: string }>(
  'function-version-fail',
  `with locked as (${LOCK}), moved as (
     update function_versions v set template_state = 'failed', template_error = $2
       from locked where v.id = $1 and v.function_id = locked.id and v.template_state in ('building', 'pending')
     returning v.function_id
   )
   update functions f set revision = f.revision + 1 from moved m where f.id = m.function_id returning f.id`,
);

export function createVersionStates(database: Pick<Database, 'pool'>, events: EventBus): VersionStates {
  const announce = (row: { id: string } | undefined): boolean => {
    if (row !== undefined) events.emit('functions-changed', [row.id]);
    return row !== undefined;
  };
  return {
    async built(versionId, root) {
      const moved = announce(await queryOne(database.pool, BUILT, [versionId, JSON.stringify(root)]));
      if (moved) events.emit('versions-pending');
      return moved;
    },
    async publish(versionId, { warning = null, root } = {}) {
      const values = [versionId, warning, root === undefined ? null : JSON.stringify(root)];
      return announce(await queryOne(database.pool, PUBLISH, values));
    },
    async captured(versionId) {
      await queryAll(database.pool, CAPTURED, [versionId]);
    },
    async fail(versionId, reason) {
      return announce(await queryOne(database.pool, FAIL, [versionId, reason]));
    },
  };
}
