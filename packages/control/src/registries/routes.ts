import { checkRegistryHost, operations, type RegistryWrite } from '@releap/contract';
import type { Database } from '@releap/database';
import type { FastifyReply } from 'fastify';
import type { App } from '../http/app.ts';
import { scopeOfKey, scopeOfMember, type ProjectScope } from '../management/project-scope.ts';
import type { Registries } from './registries.ts';

export function registryRoutes(
  app: App,
  { database, registries }: { database: Database; registries: Registries },
): void {
  const audit = (project: ProjectScope, action: string, host: string) =>
    project.audit(action, { kind: 'registry', id: checkRegistryHost(host) });
  const put = async (project: ProjectScope, host: string, body: RegistryWrite, reply: FastifyReply) => {
    await registries.put(project.id, host, body, audit(project, 'registry.put', host));
    return reply.code(204).send();
  };
  const remove = async (project: ProjectScope, host: string, reply: FastifyReply) => {
    await registries.remove(project.id, host, audit(project, 'registry.delete', host));
    return reply.code(204).send();
  };

  app.operation(operations.putRegistry, ({ params, body, principal, reply }) =>
    put(scopeOfKey(principal), params.host, body, reply),
  );
  app.operation(operations.putRegistryByBody, ({ body, principal, reply }) =>
    put(scopeOfKey(principal), body.host, body, reply),
  );
  app.operation(operations.listRegistries, ({ principal }) => registries.list(principal.projectId));
  app.operation(operations.getRegistry, ({ params, principal }) =>
    registries.get(principal.projectId, params.host),
  );
  app.operation(operations.deleteRegistry, ({ params, principal, reply }) =>
    remove(scopeOfKey(principal), params.host, reply),
  );

  app.operation(operations.putProjectRegistry, async ({ params, body, caller, reply }) =>
    put(await scopeOfMember(database, caller, params.id), params.host, body, reply),
  );
  app.operation(operations.putProjectRegistryByBody, async ({ params, body, caller, reply }) =>
    put(await scopeOfMember(database, caller, params.id), body.host, body, reply),
  );
  app.operation(operations.listProjectRegistries, async ({ params, caller }) =>
    registries.list((await scopeOfMember(database, caller, params.id)).id),
  );
  app.operation(operations.getProjectRegistry, async ({ params, caller }) =>
    registries.get((await scopeOfMember(database, caller, params.id)).id, params.host),
  );
  app.operation(operations.deleteProjectRegistry, async ({ params, caller, reply }) =>
    remove(await scopeOfMember(database, caller, params.id), params.host, reply),
  );
}
