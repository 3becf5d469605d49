import { operations } from '@releap/contract';
import type { App } from '../http/app.ts';
import type { Secrets } from './secrets.ts';

export function secretRoutes(app: App, secrets: Secrets): void {
  app.operation(operations.putSecret, async ({ params, body, principal, reply }) => {
    await secrets.put(principal.projectId, params.name, body);
    return reply.code(204).send();
  });
  app.operation(operations.listSecrets, ({ query, principal }) =>
    secrets.list(principal.projectId, query.include_object_store ?? false),
  );
  app.operation(operations.getSecret, ({ params, principal }) =>
    secrets.get(principal.projectId, params.name),
  );
  app.operation(operations.deleteSecret, async ({ params, principal, reply }) => {
    await secrets.remove(principal.projectId, params.name);
    return reply.code(204).send();
  });
}
