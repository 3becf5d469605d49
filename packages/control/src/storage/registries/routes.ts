import { checkRegistryHost, operations, type RegistryWrite } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { scopeOfKey, scopeOfMember, type ProjectScope } from '../../tenancy/management/project-scope.ts';
import type { Registries } from './registries.ts';

export function registryRoutes(
  { workload, management }: Planes,
  { database, registries }: { database: Database; registries: Registries },
): void {
  const audit = (project: ProjectScope, action: string, host: string) =>
    project.audit(action, { kind: 'registry', id: checkRegistryHost(host) });
  const put = async (project: ProjectScope, host: string, body: RegistryWrite) => {
    await registries.put(project.id, host, body, audit(project, 'registry.put', host));
  };
  const remove = async (project: ProjectScope, host: string) => {
    await registries.remove(project.id, host, audit(project, 'registry.delete', host));
  };

  workload.operation(operations.putRegistry, ({ params, body, principal }) =>
    put(scopeOfKey(principal), params.host, body),
  );
  workload.operation(operations.putRegistryByBody, ({ body, principal }) =>
    put(scopeOfKey(principal), body.host, body),
  );
  workload.operation(operations.listRegistries, ({ query, principal }) =>
    registries.list(principal.projectId, query),
  );
  workload.operation(operations.getRegistry, ({ params, principal }) =>
    registries.get(principal.projectId, params.host),
  );
  workload.operation(operations.deleteRegistry, ({ params, principal }) =>
    remove(scopeOfKey(principal), params.host),
  );

  management.operation(operations.putProjectRegistry, async ({ params, body, caller }) =>
    put(await scopeOfMember(database, caller, params.id), params.host, body),
  );
  management.operation(operations.putProjectRegistryByBody, async ({ params, body, caller }) =>
    put(await scopeOfMember(database, caller, params.id), body.host, body),
  );
  management.operation(operations.listProjectRegistries, async ({ params, query, caller }) =>
    registries.list((await scopeOfMember(database, caller, params.id)).id, query),
  );
  management.operation(operations.getProjectRegistry, async ({ params, caller }) =>
    registries.get((await scopeOfMember(database, caller, params.id)).id, params.host),
  );
  management.operation(operations.deleteProjectRegistry, async ({ params, caller }) =>
    remove(await scopeOfMember(database, caller, params.id), params.host),
  );
}
