import { operations, type SecretWrite } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { scopeOfKey, scopeOfMember, type ProjectScope } from '../../tenancy/management/project-scope.ts';
import type { Secrets } from './secrets.ts';

export function secretRoutes(
  { workload, management }: Planes,
  { database, secrets }: { database: Database; secrets: Secrets },
): void {
  const put = async (project: ProjectScope, name: string, body: SecretWrite) => {
    await secrets.put(project.id, name, body, project.audit('secret.put', { kind: 'secret', id: name }));
  };
  const remove = async (project: ProjectScope, name: string) => {
    await secrets.remove(project.id, name, project.audit('secret.delete', { kind: 'secret', id: name }));
  };

  workload.operation(operations.putSecret, ({ params, body, principal }) =>
    put(scopeOfKey(principal), params.name, body),
  );
  workload.operation(operations.listSecrets, ({ query, principal }) =>
    secrets.list(principal.projectId, query),
  );
  workload.operation(operations.getSecret, ({ params, principal }) =>
    secrets.get(principal.projectId, params.name),
  );
  workload.operation(operations.deleteSecret, ({ params, principal }) =>
    remove(scopeOfKey(principal), params.name),
  );

  management.operation(operations.putProjectSecret, async ({ params, body, caller }) =>
    put(await scopeOfMember(database, caller, params.id), params.name, body),
  );
  management.operation(operations.putProjectSecretByBody, async ({ params, body, caller }) =>
    put(await scopeOfMember(database, caller, params.id), body.name, body),
  );
  management.operation(operations.listProjectSecrets, async ({ params, query, caller }) =>
    secrets.list((await scopeOfMember(database, caller, params.id)).id, query),
  );
  management.operation(operations.getProjectSecret, async ({ params, caller }) =>
    secrets.get((await scopeOfMember(database, caller, params.id)).id, params.name),
  );
  management.operation(operations.deleteProjectSecret, async ({ params, caller }) =>
    remove(await scopeOfMember(database, caller, params.id), params.name),
  );
}
