/**
 * The states of versions after their deploy. Each change is one statement that locks the function before its version. The current
 * version only moves to newer ones. A version that is activated `now` becomes the current one with its deploy, or when its image is
 * built; one that is activated `when_ready` when it is published.
 */
import type { FunctionTemplateState, RootSource } from '@releap/contract';
import { queryAll, statement, type Database, type FunctionVersionRow } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import { createLifecycle } from '../../platform/lifecycle/apply.ts';
import { defineMachine, type Transition } from '../../platform/lifecycle/machine.ts';
import { eventSql, transitionSql, type TransitionInput } from '../../platform/lifecycle/sql.ts';

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

type VersionTransition = Transition<FunctionTemplateState, 'built' | 'publish' | 'fail'>;

// biome-ignore format: one row per line
export const VERSION_MACHINE = defineMachine<VersionTransition>({
  name: 'function-version',
  table: 'function_versions',
  column: 'template_state',
  transitions: [
    { from: ['building'], on: 'built', to: 'pending', note: 'the current one, if it is activated `now` or nothing else serves' },
    { from: ['pending'], on: 'publish', to: 'published', note: 'an instance has listened; the current one, unless a newer one is' },
    { from: ['building', 'pending'], on: 'fail', to: 'failed', note: 'with the reason; also when its function is deleted' },
  ],
});
export const VERSION_EVENTS = eventSql(VERSION_MACHINE);

const CURRENT: Partial<Record<VersionTransition['on'], string>> = {
  built: `, current_version = case when m.activate = 'now' or ${NOTHING_SERVES('f')} then greatest(f.current_version, m.version)
                                   else f.current_version end`,
  publish: ', current_version = greatest(f.current_version, m.version)',
};

const VERSION_SQL = transitionSql<VersionTransition, Moved>(VERSION_MACHINE, {
  columns: ['function_id', 'version', 'activate'],
  updatedAt: false,
  input: { root: 'jsonb' },
  // A probe of the index for each, however many functions there are.
  lock: `select t.id from t cross join lateral (
     select from functions where id = (select function_id from function_versions where id = t.id) for no key update) f`,
  set: {
    root: () => 'coalesce(t.root, s.root)',
    template_error: ({ on }) => (on === 'built' ? undefined : 't.error'),
  },
  alongside: ([row]) => ({
    functions_changed: `update functions f set revision = f.revision + 1${(row && CURRENT[row.on]) ?? ''}
    from moved m where f.id = m.function_id`,
  }),
});
type Moved = Pick<FunctionVersionRow, 'function_id' | 'version' | 'activate'>;

/** $1 version */
const CAPTURED = statement(
  'function-version-captured',
  `update function_versions set template_error = null
    where id = $1 and template_state = 'published' and template_error is not null`,
);

export function createVersionStates(database: Pick<Database, 'pool'>, events: EventBus): VersionStates {
  const { apply } = createLifecycle<VersionTransition, Moved, TransitionInput & { root?: RootSource }>({
    database,
    sql: VERSION_SQL,
    deadlines: {},
    onMoved: (rows) =>
      events.emit(
        'functions-changed',
        rows.map((row) => row.function_id),
      ),
  });
  return {
    async built(id, root) {
      const [moved] = await apply('built', [{ id, root }]);
      if (moved !== undefined) events.emit('versions-pending');
      return moved !== undefined;
    },
    async publish(id, { warning, root } = {}) {
      const change = { id, ...(warning && { error: warning }), ...(root && { root }) };
      return (await apply('publish', [change])).length > 0;
    },
    async captured(id) {
      await queryAll(database.pool, CAPTURED, [id]);
    },
    async fail(id, error) {
      return (await apply('fail', [{ id, error }])).length > 0;
    },
  };
}
