import type { ControlContext } from '../context.ts';
import type { Module } from '../module.ts';
import { statementStep } from '../teardown/step.ts';
import { objectStoreMountRoutes } from './mount-routes.ts';
import { createObjectStores } from './object-stores.ts';
import { objectStoreRoutes } from './routes.ts';

export function objectStoresModule({ database, encryption, hosts }: ControlContext): Module {
  return {
    name: 'object-stores',
    routes(planes) {
      objectStoreRoutes(planes, { database, encryption, stores: createObjectStores(database) });
      objectStoreMountRoutes(planes, { database, hosts });
    },
    teardown: [
      statementStep(database, {
        name: 'object-stores',
        phase: 'erase',
        // Mounts name their store; those of the project's sandboxes have ended in an earlier phase.
        text: `with mounts as (
                 delete from object_store_mounts where object_store_id in (select id from object_stores where project_id = $1)
               ), gone as (delete from object_stores where project_id = $1)
               select 1 where false`,
      }),
    ],
  };
}
