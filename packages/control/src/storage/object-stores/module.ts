import type { Database } from '@releap/database';
import type { Encryption } from '../../platform/encryption/encryption.ts';
import { purge } from '../../platform/retention/purge.ts';
import type { Module } from '../../platform/module.ts';
import { batchStep } from '../../platform/teardown/step.ts';
import { createObjectStores } from './object-stores.ts';
import { objectStoreRoutes } from './routes.ts';

/** Stores that no sandbox has mounted any more. */
export const OBJECT_STORE_PURGE = purge(
  'object-stores',
  `delete from object_stores where id in (
       select o.id from object_stores o
        where o.deleted_at < now() - $1 * interval '1 day'
          and not exists (select 1 from object_store_mounts m where m.object_store_id = o.id)
        order by o.deleted_at limit $2 for update skip locked)
     returning id`,
);

export function objectStoresModule({
  database,
  encryption,
}: {
  database: Database;
  encryption: Encryption;
}): Module {
  return {
    name: 'object-stores',
    purges: [OBJECT_STORE_PURGE],
    routes: (planes) =>
      objectStoreRoutes(planes, { database, encryption, stores: createObjectStores(database) }),
    teardown: [
      batchStep(database, {
        name: 'object-stores',
        phase: 'erase',
        // Mounts name their store; those of the project's sandboxes have ended in an earlier phase.
        text: `with mounts as (
                 delete from object_store_mounts where (sandbox_id, mount_path) in (
                   select m.sandbox_id, m.mount_path from object_store_mounts m join object_stores o on o.id = m.object_store_id
                    where o.project_id = $1 limit $2)
                 returning 1),
               gone as (
                 delete from object_stores where id in (
                   select id from object_stores o where project_id = $1
                      and not exists (select 1 from object_store_mounts m where m.object_store_id = o.id) limit $2)
                 returning 1)
               select 1 from mounts union all select 1 from gone`,
      }),
    ],
  };
}
