import { internalOperations, operations } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Encryption } from '../../platform/encryption/encryption.ts';
import type { Planes } from '../../platform/http/planes.ts';
import { projectRoute } from '../../tenancy/management/project-routes.ts';
import { readMountedStores } from './mounted-stores.ts';
import type { ObjectStores } from './object-stores.ts';

export function objectStoreRoutes(
  planes: Planes,
  { database, encryption, stores }: { database: Database; encryption: Encryption; stores: ObjectStores },
): void {
  planes.runner.operation(internalOperations.readRunnerStores, ({ body, runner }) =>
    readMountedStores(database.pool, encryption, body.sandboxes, runner.runnerId),
  );

  const route = projectRoute(planes, database);
  route(operations.createObjectStore, operations.createProjectObjectStore, ({ project, body, ids }) =>
    stores.create(project, body, ids),
  );
  route(operations.listObjectStores, operations.listProjectObjectStores, ({ project, query }) =>
    stores.list(project.id, query),
  );
  route(operations.getObjectStore, operations.getProjectObjectStore, ({ project, ref }) =>
    stores.get(project.id, ref),
  );
  route(operations.deleteObjectStore, operations.deleteProjectObjectStore, ({ project, ref }) =>
    stores.remove(project, ref),
  );
}
