/**
 * Preview URLs, without a slash at their end, because clients add paths to them. A port that has none yet gets a private preview
 * endpoint, never a public one.
 */
import type { Database } from '@releap/database';
import type { PreviewTokens } from '../endpoints/preview-tokens.ts';
import {
  COMPAT_LIMITS,
  conflict,
  compatOperations as operations,
  isLinkToken,
  newUuid,
  notFound,
  quote,
  sandboxNotFound,
  TOOLBOX_KEY,
} from '@releap/contract';
import type { Principal } from '../../platform/auth/authenticator.ts';
import { ensureEndpoint, exposedSandbox, withoutSlash, type ExposedSandbox } from '../endpoints/endpoints.ts';
import { createPreviewLink, endPreviewLink } from '../endpoints/preview-links.ts';
import type { Planes } from '../../platform/http/planes.ts';
import { findSandbox } from './sandbox-rows.ts';

export function compatPreviewRoutes(
  { compat }: Planes,
  { database, previewTokens }: { database: Database; previewTokens: PreviewTokens },
): void {
  compat.operation(operations.getPreviewUrl, async ({ params, principal }) => {
    const { sandbox, endpointId, url } = await expose(principal, params);
    const scope = params.port === TOOLBOX_KEY.port ? 'toolbox' : 'preview';
    const token = await previewTokens.issue(endpointId, null, scope);
    return { sandboxId: sandbox.shownId, url: withoutSlash(url), token };
  });

  compat.operation(operations.getSignedPreviewUrl, async ({ params, query, principal }) => {
    const { sandbox, endpointId } = await expose(principal, params);
    const { port } = params;
    const seconds = query.expiresInSeconds ?? COMPAT_LIMITS.previewSeconds;
    const token = await createPreviewLink(database, endpointId, seconds);
    return { sandboxId: sandbox.shownId, port, url: sandbox.linkUrl(port, token), token };
  });

  compat.operation(operations.expireSignedPreviewUrl, async ({ params, principal }) => {
    const { id, port, token } = params;
    const row = await findSandbox(database, principal.projectId, id);
    if (row === undefined) throw sandboxNotFound(id);
    if (!isLinkToken(token) || !(await endPreviewLink(database, { sandboxId: row.id, port, token })))
      throw notFound(
        `port ${port} of sandbox ${quote(id)} has no signed preview URL with this token: not found`,
        'endpoint_not_found',
      );
    return {};
  });

  async function expose(
    { projectId }: Principal,
    { id, port }: { id: string; port: number },
  ): Promise<{ sandbox: ExposedSandbox; endpointId: string; url: string }> {
    const row = await findSandbox(database, projectId, id);
    if (row === undefined) throw sandboxNotFound(id);
    // One that is not persistent has ended, and is only shown.
    if (row.stopped)
      throw conflict(`sandbox ${quote(id)} is stopped: its ports have no previews`, 'sandbox_not_running');
    const sandbox = await exposedSandbox(database, row.id, projectId);
    const { endpoint } = await ensureEndpoint(database, sandbox, { id: newUuid(), port, isPublic: false });
    return { sandbox, endpointId: endpoint.id, url: endpoint.url };
  }
}
