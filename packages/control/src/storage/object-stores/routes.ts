import { internalOperations, operations } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Encryption } from '../../platform/encryption/encryption.ts';
import type { Planes } from '../../platform/http/planes.ts';
import { scopeOfKey, scopeOfMember } from '../../tenancy/management/project-scope.ts';
import { readMountedStores } from './mounted-stores.ts';
import type { ObjectStores } from './object-stores.ts';

export function objectStoreRoutes(
  { workload, management, runner: runners }: Planes,
  { database, encryption, stores }: { database: Database; encryption: Encryption; stores: ObjectStores },
): void {
  runners.operation(internalOperations.readRunnerStores, ({ body, runner }) =>
    readMountedStores(database.pool, encryption, body.sandboxes, runner.runnerId),
  );

  workload.operation(operations.createObjectStore, ({ body, principal, ids }) =>
    stores.create(scopeOfKey(principal), body, ids),
  );
  workload.operation(operations.listObjectStores, ({ query, principal }) =>
    stores.list(principal.projectId, query),
  );
  workload.operation(operations.getObjectStore, ({ params, principal }) =>
    stores.get(principal.projectId, params.id_or_name),
  );
  workload.operation(operations.deleteObjectStore, ({ params, principal }) =>
    stores.remove(scopeOfKey(principal), params.id_or_name),
  );

  management.operation(operations.createProjectObjectStore, async ({ params, body, caller, ids }) =>
    stores.create(await scopeOfMember(database, caller, params.id), body, ids),
  );
  management.operation(operations.listProjectObjectStores, async ({ params, query, caller }) =>
    stores.list((await scopeOfMember(database, caller, params.id)).id, query),
  );
  management.operation(operations.getProjectObjectStore, async ({ params, caller }) =>
    stores.get((await scopeOfMember(database, caller, params.id)).id, params.name),
  );
  management.operation(operations.deleteProjectObjectStore, async ({ params, caller }) =>
    stores.remove(await scopeOfMember(database, caller, params.id), params.name),
  );
}
