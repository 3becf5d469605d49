/** The management plane: the operations on organizations and projects, and how to sign in. */
import { Type, type Static } from 'typebox';
import type { ApiResource, Operation } from '../platform/operation.ts';
import {
  AuditEntry,
  Invitation,
  Member,
  Organization,
  organizationOperations,
  User,
} from './organization.ts';
import { ApiKey, ApiKeyMinted, Project, projectOperations } from './project.ts';

export const AuthConfig = Type.Object({
  issuer: Type.String({ description: 'OpenID Connect issuer; its discovery document has the endpoints.' }),
  client_id: Type.String({
    description: 'Public client of the CLI: device code, or authorization code with PKCE.',
  }),
  audience: Type.String({ description: 'Required audience of access tokens.' }),
  scopes: Type.Array(Type.String()),
});
export type AuthConfig = Static<typeof AuthConfig>;

export const managementOperations = {
  ...organizationOperations,
  ...projectOperations,
  getAuthConfig: {
    method: 'GET',
    path: '/auth/config',
    tag: 'Service',
    summary: 'Read how to sign in',
    security: 'public',
    success: {
      status: 200,
      response: { description: 'What a client needs to get an access token.', schema: AuthConfig },
    },
    codes: ['sign_in_not_configured'],
    errors: { 503: 'The server has no issuer.' },
  },
} as const satisfies Record<string, Operation>;

export const managementResource = {
  tags: {
    Organizations: 'Users, organizations, members, invitations and the audit log.',
    Projects: 'Projects group sandboxes, images and the API keys that reach them.',
  },
  operations: managementOperations,
  schemas: { User, Organization, Member, Invitation, Project, ApiKey, ApiKeyMinted, AuditEntry },
} as const satisfies ApiResource;
