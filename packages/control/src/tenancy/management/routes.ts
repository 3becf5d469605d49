import { operations, unavailable, type AuthConfig } from '@releap/contract';
import type { OidcOptions } from '../../platform/auth/oidc/verifier.ts';
import type { Planes } from '../../platform/http/planes.ts';
import { apiKeyRoutes } from './api-keys.ts';
import { auditRoutes } from './audit-routes.ts';
import type { ManagementContext } from './context.ts';
import { invitationRoutes } from './invitations.ts';
import { memberRoutes } from './members.ts';
import { orgRoutes } from './orgs.ts';
import { projectRoutes } from './projects.ts';

/** Default OIDC scopes of the CLI: the user's identity, and refresh tokens. */
const DEFAULT_SCOPES = ['openid', 'profile', 'email', 'offline_access'] as const;
const DEFAULT_CLIENT_ID = 'releap-cli';

export function managementRoutes(
  planes: Planes,
  context: ManagementContext & { oidc: OidcOptions | undefined },
): void {
  const { oidc } = context;
  orgRoutes(planes, context);
  memberRoutes(planes, context);
  invitationRoutes(planes, context);
  projectRoutes(planes, context);
  apiKeyRoutes(planes, context);
  auditRoutes(planes, context);

  planes.public.operation(operations.getAuthConfig, async (): Promise<AuthConfig> => {
    if (oidc === undefined)
      throw unavailable('sign-in is not configured: this server has no OIDC issuer', 60);
    return {
      issuer: oidc.issuer,
      client_id: oidc.clientId ?? DEFAULT_CLIENT_ID,
      audience: oidc.audience,
      scopes: [...(oidc.scopes ?? DEFAULT_SCOPES)],
    };
  });
}
