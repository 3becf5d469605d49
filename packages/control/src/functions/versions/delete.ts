/**
 * `DELETE /fns/:name`, and the end of all functions of a deleted project. The row stays under a name that no function can have,
 * without a current version, as long as something refers to it: instances that end, and the log of its invocations, which are
 * charged. A periodic task, or the teardown of the project, removes it then.
 */
import type { BuildQueue } from '../../storage/images/build-queue.ts';
import type { Database } from '@releap/database';
import type { EventBus } from '../../platform/events/event-bus.ts';
import type { Lifecycle } from '../../compute/sandboxes/lifecycle.ts';
import type { Snapshots } from '../../compute/snapshots/snapshots.ts';
import { functionNotFound } from '@releap/contract';
import { queryAll, queryOne, statement } from '@releap/database';
import { deleteFunctionImages } from '../../storage/images/function-images.ts';
import { INVOCATION_EVENTS } from '../invocations/transitions.ts';
import { IS_DELETED, isDeletedName } from './deleted-name.ts';
import { VERSION_EVENTS } from './version-states.ts';

/**
 * Invocations that wait end here, in the same statement: nothing would run them. A running one ends with its instance.
 * $1 project, $2 name, or null for any of the project, $3 most functions
 */
const DELETE = statement<{ id: string }>(
  'function-delete',
  `with f as (
     update functions set name = name || '/' || id, public = false, token_hash = null, current_version = null,
            revision = revision + 1
      where id in (select id from functions
                    where project_id = $1 and name = coalesce($2, name) and position('/' in name) = 0 limit $3)
      returning id
   ), versions as (
     update function_versions v set env = '{}', ${VERSION_EVENTS.sets('v', { fail: 'true' })},
            template_error = case when ${VERSION_EVENTS.allows('v', 'fail')} then 'its function was deleted' else v.template_error end
       from f where v.function_id = f.id
   ), schedules as (
     delete from function_schedules s using f where s.function_id = f.id
   ), waiting as materialized (
     select i.id, i.queued_at from invocations i join f on f.id = i.function_id
      where ${INVOCATION_EVENTS.allows('i', 'function-deleted')} order by i.id for update of i
   ), failed as (
     update invocations i set ${INVOCATION_EVENTS.sets('i', 'function-deleted')}, error = 'its function was deleted', finished_at = now(), billed = coalesce(i.billed, 0)
       from waiting w where i.id = w.id and i.queued_at = w.queued_at returning i.id
   ), bodies as (
     delete from invocation_payloads p using failed w where p.invocation_id = w.id
   )
   select id from f`,
);

const BATCH = 500;
const LOWEST_ID = '00000000-0000-0000-0000-000000000000';

/** $1 id, $2 rows */
const DELETED = statement<{ id: string }>(
  'functions-deleted',
  `select f.id from functions f where ${IS_DELETED('f')} and f.id > $1 order by f.id limit $2`,
);

/** $1 functions */
const INSTANCES = statement<{ id: string }>(
  'functions-deleted-instances',
  `select s.id from function_instances i join sandboxes s on s.id = i.sandbox_id
    where i.function_id = any($1::uuid[]) and s.status not in ('deleting', 'deleted') limit 200`,
);
/** Memory from which instances were restored. $1 functions */
const TEMPLATES = statement<{ id: string }>(
  'functions-deleted-templates',
  `select s.id from function_templates t join function_versions v on v.id = t.version_id
     join snapshots s on s.id = t.snapshot_id and s.status <> 'deleted'
    where v.function_id = any($1::uuid[]) limit 200`,
);
const IMAGES = statement<{ image_id: string }>(
  'functions-deleted-images',
  `update function_versions v set image_id = null
     from (select id, image_id from function_versions where function_id = any($1::uuid[]) and image_id is not null for update) old
    where v.id = old.id returning old.image_id`,
);
/** $1 functions */
const PURGE = statement(
  'functions-deleted-purge',
  `with gone as (delete from functions f
    where f.id = any($1::uuid[])
      and not exists (select 1 from function_meters m where m.function_id = f.id and m.since is not null)
      and not exists (select 1 from function_instances i where i.function_id = f.id)
      and not exists (select 1 from invocations i where i.function_id = f.id)
      and not exists (select 1 from function_templates t join function_versions v on v.id = t.version_id
                        join snapshots s on s.id = t.snapshot_id and s.status <> 'deleted' where v.function_id = f.id)
      returning f.id)
   delete from function_meters m using gone where m.function_id = gone.id`,
);

type DeleteContext = {
  builds: BuildQueue;
  database: Database;
  events: EventBus;
  lifecycle: Lifecycle;
  snapshots: Snapshots;
};

/** @throws 404 */
export async function deleteFunction(context: DeleteContext, projectId: string, name: string): Promise<void> {
  const { database, events } = context;
  const deleted = isDeletedName(name)
    ? undefined
    : await queryOne(database.pool, DELETE, [projectId, name, 1]);
  if (deleted === undefined) throw functionNotFound(name);
  events.emit('functions-changed', [deleted.id]);
  // What a server that dies here leaves, the periodic task ends.
  await endRemains(context, [deleted.id]);
}

/** Deletes all functions of a project, in batches. What they have left ends with the project's sandboxes, snapshots and images. */
export async function deleteFunctionsOf(
  { database, events }: { database: Database; events: EventBus },
  projectId: string,
): Promise<void> {
  for (;;) {
    const ids = (await queryAll(database.pool, DELETE, [projectId, null, BATCH])).map(({ id }) => id);
    if (ids.length > 0) events.emit('functions-changed', ids);
    if (ids.length < BATCH) return;
  }
}

/** Ends what deleted functions have left, and removes those that nothing refers to. */
export async function removeDeleted(context: DeleteContext): Promise<void> {
  const { database } = context;
  for (let after = LOWEST_ID; ; ) {
    const ids = (await queryAll(database.pool, DELETED, [after, BATCH])).map(({ id }) => id);
    const last = ids.at(-1);
    if (last === undefined) return;
    await endRemains(context, ids);
    await queryAll(database.pool, PURGE, [ids]);
    after = last;
  }
}

async function endRemains(
  { builds, database, lifecycle, snapshots }: DeleteContext,
  ids: readonly string[],
): Promise<void> {
  await lifecycle.apply('delete', await queryAll(database.pool, INSTANCES, [ids]));
  await snapshots.apply('delete', await queryAll(database.pool, TEMPLATES, [ids]));
  const images = await database.transaction(async (client) => {
    const found = (await queryAll(client, IMAGES, [ids])).map(({ image_id: id }) => id);
    await deleteFunctionImages(client, found);
    return found;
  });
  // Cancels their builds.
  if (images.length > 0) builds.kick();
}
