import { operations, type SecretWrite } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { projectRoute } from '../../tenancy/management/project-routes.ts';
import { scopeOfMember, type ProjectScope } from '../../tenancy/management/project-scope.ts';
import type { Secrets } from './secrets.ts';

export function secretRoutes(
  planes: Planes,
  { database, secrets }: { database: Database; secrets: Secrets },
): void {
  const put = async (project: ProjectScope, name: string, body: SecretWrite) => {
    await secrets.put(project.id, name, body, project.audit('secret.put', { kind: 'secret', id: name }));
  };

  const route = projectRoute(planes, database);
  route(operations.putSecret, operations.putProjectSecret, ({ project, ref, body }) =>
    put(project, ref, body),
  );
  route(operations.listSecrets, operations.listProjectSecrets, ({ project, query }) =>
    secrets.list(project.id, query),
  );
  route(operations.getSecret, operations.getProjectSecret, ({ project, ref }) =>
    secrets.get(project.id, ref),
  );
  route(operations.deleteSecret, operations.deleteProjectSecret, async ({ project, ref }) => {
    await secrets.remove(project.id, ref, project.audit('secret.delete', { kind: 'secret', id: ref }));
  });
  planes.management.operation(operations.putProjectSecretByBody, async ({ params, body, caller }) =>
    put(await scopeOfMember(database, caller, params.id), body.name, body),
  );
}
