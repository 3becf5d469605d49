import { operations } from '@releap/contract';
import type { App } from '../http/app.ts';
import type { Registries } from './registries.ts';

export function registryRoutes(app: App, registries: Registries): void {
  app.operation(operations.putRegistry, async ({ params, body, principal, reply }) => {
    await registries.put(principal.projectId, params.host, body);
    return reply.code(204).send();
  });
  app.operation(operations.putRegistryByBody, async ({ body, principal, reply }) => {
    await registries.put(principal.projectId, body.host, body);
    return reply.code(204).send();
  });
  app.operation(operations.listRegistries, ({ principal }) => registries.list(principal.projectId));
  app.operation(operations.getRegistry, ({ params, principal }) =>
    registries.get(principal.projectId, params.host),
  );
  app.operation(operations.deleteRegistry, async ({ params, principal, reply }) => {
    await registries.remove(principal.projectId, params.host);
    return reply.code(204).send();
  });
}
