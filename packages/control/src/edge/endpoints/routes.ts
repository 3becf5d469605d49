import type { Database } from '@releap/database';
import type { PreviewTokens } from './preview-tokens.ts';
import { operations, PREVIEW_TOKEN_PARAMETER } from '@releap/contract';
import type { Planes } from '../../platform/http/planes.ts';
import {
  createEndpoint,
  deleteEndpoint,
  ensureEndpoint,
  exposedSandbox,
  listEndpoints,
  updateEndpoint,
} from './endpoints.ts';

export function endpointRoutes(
  { workload }: Planes,
  { database, previewTokens }: { database: Database; previewTokens: PreviewTokens },
): void {
  workload.operation(operations.createEndpoint, async ({ params, body, principal, ids }) => {
    const sandbox = await exposedSandbox(database, params.id, principal.projectId);
    return createEndpoint(database, sandbox, {
      id: ids.uuid(),
      port: body.port,
      isPublic: body.public ?? false,
    });
  });

  workload.operation(operations.listEndpoints, async ({ params, query, principal }) => {
    const sandbox = await exposedSandbox(database, params.id, principal.projectId);
    return listEndpoints(database, sandbox, query);
  });

  workload.operation(operations.updateEndpoint, async ({ params, body, principal }) => {
    const sandbox = await exposedSandbox(database, params.id, principal.projectId);
    return updateEndpoint(database, sandbox, params.endpoint_id.toLowerCase(), body.public);
  });

  workload.operation(operations.deleteEndpoint, async ({ params, principal }) => {
    const sandbox = await exposedSandbox(database, params.id, principal.projectId);
    const id = params.endpoint_id.toLowerCase();
    await deleteEndpoint(database, sandbox, id);
    return { id, deleted: true as const };
  });

  workload.operation(operations.createPreviewLink, async ({ params, body, principal, ids }) => {
    const sandbox = await exposedSandbox(database, params.id, principal.projectId);
    const { endpoint } = await ensureEndpoint(database, sandbox, {
      id: ids.uuid(),
      port: body.port,
      isPublic: false,
    });
    const expiresAt =
      body.expires_in_s === undefined
        ? null
        : new Date((Math.ceil(Date.now() / 1000) + body.expires_in_s) * 1000);
    const token = await previewTokens.issue(endpoint.id, expiresAt);
    return {
      endpoint_id: endpoint.id,
      url: endpoint.url,
      token,
      signed_url: `${endpoint.url}?${PREVIEW_TOKEN_PARAMETER}=${token}`,
      expires_at: expiresAt?.toISOString() ?? null,
    };
  });
}
