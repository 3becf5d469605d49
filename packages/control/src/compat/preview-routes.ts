/** Preview URLs. A port that has none yet gets a private preview endpoint, never a public one. */
import {
  COMPAT_LIMITS,
  conflict,
  compatOperations as operations,
  newUuid,
  PREVIEW_TOKEN_PARAMETER,
  quote,
  sandboxNotFound,
  TOOLBOX_KEY,
} from '@releap/contract';
import type { Principal } from '../auth/authenticator.ts';
import type { ControlContext } from '../context.ts';
import { ensureEndpoint, exposedSandbox } from '../endpoints/endpoints.ts';
import type { Planes } from '../http/planes.ts';
import { findSandbox } from './sandbox-rows.ts';

export function compatPreviewRoutes(
  { compat }: Planes,
  { database, previewTokens }: Pick<ControlContext, 'database' | 'previewTokens'>,
): void {
  compat.operation(operations.getPreviewUrl, async ({ params, principal }) => {
    const { sandboxId, endpointId, url } = await expose(principal, params);
    const scope = params.port === TOOLBOX_KEY.port ? 'toolbox' : 'preview';
    return { sandboxId, url, token: await previewTokens.issue(endpointId, null, scope) };
  });

  compat.operation(operations.getSignedPreviewUrl, async ({ params, query, principal }) => {
    const { sandboxId, endpointId, url } = await expose(principal, params);
    const seconds = query.expiresInSeconds ?? COMPAT_LIMITS.previewSeconds;
    const token = await previewTokens.issue(endpointId, new Date(Date.now() + seconds * 1000));
    return { sandboxId, port: params.port, url: `${url}?${PREVIEW_TOKEN_PARAMETER}=${token}`, token };
  });

  async function expose(
    { projectId }: Principal,
    { id, port }: { id: string; port: number },
  ): Promise<{ sandboxId: string; endpointId: string; url: string }> {
    const row = await findSandbox(database, projectId, id);
    if (row === undefined) throw sandboxNotFound(id);
    // One that is not persistent has ended, and is only shown.
    if (row.stopped) throw conflict(`sandbox ${quote(id)} is stopped: its ports have no previews`);
    const sandbox = await exposedSandbox(database, row.id, projectId);
    const { endpoint } = await ensureEndpoint(database, sandbox, { id: newUuid(), port, isPublic: false });
    return { sandboxId: sandbox.shownId, endpointId: endpoint.id, url: endpoint.url };
  }
}
