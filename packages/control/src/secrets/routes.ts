import { operations, type SecretWrite } from '@releap/contract';
import type { Database } from '@releap/database';
import type { FastifyReply } from 'fastify';
import type { App } from '../http/app.ts';
import { scopeOfKey, scopeOfMember, type ProjectScope } from '../management/project-scope.ts';
import type { Secrets } from './secrets.ts';

export function secretRoutes(
  app: App,
  { database, secrets }: { database: Database; secrets: Secrets },
): void {
  const put = async (project: ProjectScope, name: string, body: SecretWrite, reply: FastifyReply) => {
    await secrets.put(project.id, name, body, project.audit('secret.put', { kind: 'secret', id: name }));
    return reply.code(204).send();
  };
  const list = (project: ProjectScope, query: { include_object_store?: boolean }) =>
    secrets.list(project.id, query.include_object_store ?? false);
  const remove = async (project: ProjectScope, name: string, reply: FastifyReply) => {
    await secrets.remove(project.id, name, project.audit('secret.delete', { kind: 'secret', id: name }));
    return reply.code(204).send();
  };

  app.operation(operations.putSecret, ({ params, body, principal, reply }) =>
    put(scopeOfKey(principal), params.name, body, reply),
  );
  app.operation(operations.listSecrets, ({ query, principal }) => list(scopeOfKey(principal), query));
  app.operation(operations.getSecret, ({ params, principal }) =>
    secrets.get(principal.projectId, params.name),
  );
  app.operation(operations.deleteSecret, ({ params, principal, reply }) =>
    remove(scopeOfKey(principal), params.name, reply),
  );

  app.operation(operations.putProjectSecret, async ({ params, body, caller, reply }) =>
    put(await scopeOfMember(database, caller, params.id), params.name, body, reply),
  );
  app.operation(operations.putProjectSecretByBody, async ({ params, body, caller, reply }) =>
    put(await scopeOfMember(database, caller, params.id), body.name, body, reply),
  );
  app.operation(operations.listProjectSecrets, async ({ params, query, caller }) =>
    list(await scopeOfMember(database, caller, params.id), query),
  );
  app.operation(operations.getProjectSecret, async ({ params, caller }) =>
    secrets.get((await scopeOfMember(database, caller, params.id)).id, params.name),
  );
  app.operation(operations.deleteProjectSecret, async ({ params, caller, reply }) =>
    remove(await scopeOfMember(database, caller, params.id), params.name, reply),
  );
}
