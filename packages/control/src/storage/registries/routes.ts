import { checkRegistryHost, operations, type RegistryWrite } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { projectRoute } from '../../tenancy/management/project-routes.ts';
import type { ProjectScope } from '../../tenancy/management/project-scope.ts';
import type { Registries } from './registries.ts';

export function registryRoutes(
  planes: Planes,
  { database, registries }: { database: Database; registries: Registries },
): void {
  const audit = (project: ProjectScope, action: string, host: string) =>
    project.audit(action, { kind: 'registry', id: checkRegistryHost(host) });
  const put = async (project: ProjectScope, host: string, body: RegistryWrite) => {
    await registries.put(project.id, host, body, audit(project, 'registry.put', host));
  };

  const route = projectRoute(planes, database);
  route(operations.putRegistry, operations.putProjectRegistry, ({ project, ref, body }) =>
    put(project, ref, body),
  );
  route(operations.putRegistryByBody, operations.putProjectRegistryByBody, ({ project, body }) =>
    put(project, body.host, body),
  );
  route(operations.listRegistries, operations.listProjectRegistries, ({ project, query }) =>
    registries.list(project.id, query),
  );
  route(operations.getRegistry, operations.getProjectRegistry, ({ project, ref }) =>
    registries.get(project.id, ref),
  );
  route(operations.deleteRegistry, operations.deleteProjectRegistry, async ({ project, ref }) => {
    await registries.remove(project.id, ref, audit(project, 'registry.delete', ref));
  });
}
