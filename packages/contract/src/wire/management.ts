/** The management plane: users, organizations, members, invitations, projects, API keys and the audit log. */
import { Type, type Static } from 'typebox';
import { NAME_CHARS } from './platform/limits.ts';
import { NextCursor, PageQuery, nextPage, pageFields, cursorKind } from './platform/paging.ts';

/** Not in the contract: lists of the management plane answer as a whole when no page is asked for, so their contents are bounded. */
export const MANAGEMENT_BOUNDS = {
  organizationsPerUser: 1000,
  projectsPerOrganization: 1000,
  membersPerOrganization: 1000,
  /** Pending invitations of one organization, and shown ones of one address. */
  invitations: 1000,
  /** Active keys of a project. Of the revoked ones the newest are shown. */
  keysPerProject: 1000,
} as const;

export const INVITATION_DAYS = 14;

export const ROLES = ['owner', 'member'] as const;
export const Role = Type.Enum(ROLES, { description: '`owner` or `member`.' });
export type Role = (typeof ROLES)[number];

const Uuid = Type.String({ format: 'uuid' });
const Stamp = Type.String({ format: 'date-time', description: 'RFC 3339.' });
const MaybeStamp = Type.Union([Stamp, Type.Null()]);
const Name = Type.String({
  description: `1 to ${NAME_CHARS} characters, without control characters. Surrounding white space is removed.`,
});
const Named = Type.Object({ name: Name });

export const OrgParams = Type.Object({ id: Type.String({ description: 'Id of the organization.' }) });
export const ProjectParams = Type.Object({ id: Type.String({ description: 'Id of the project.' }) });

export const User = Type.Object({ id: Uuid, email: Type.String(), name: Type.String() });
export type User = Static<typeof User>;

export const OrgWrite = Named;
export type OrgWrite = Static<typeof OrgWrite>;
export const OrgCreated = Type.Object({ id: Uuid, name: Type.String(), personal: Type.Boolean() });
export type OrgCreated = Static<typeof OrgCreated>;
export const Organization = Type.Object({
  id: Uuid,
  name: Type.String(),
  personal: Type.Boolean({
    description: 'It belongs to one user, cannot have other members and cannot be deleted.',
  }),
  role: Role,
});
export type Organization = Static<typeof Organization>;
export const OrganizationList = Type.Object({ organizations: Type.Array(Organization), ...nextPage });
export type OrganizationList = Static<typeof OrganizationList>;
export const OrgRenamed = Type.Object({ id: Uuid, name: Type.String() });
export const Deleted = Type.Object({ deleted: Uuid });

export const Member = Type.Object({ user_id: Uuid, email: Type.String(), name: Type.String(), role: Role });
export type Member = Static<typeof Member>;
export const MemberList = Type.Object({ members: Type.Array(Member), ...nextPage });
export type MemberList = Static<typeof MemberList>;
export const MemberParams = Type.Object({ id: Type.String(), user_id: Type.String() });
export const MemberRemoved = Type.Object({ removed: Uuid });

export const InvitationCreate = Type.Object({
  email: Type.String({ expected: 'an e-mail address', description: 'Case does not matter.' }),
  role: Type.Optional(Type.Enum(ROLES, { default: 'member' })),
});
export type InvitationCreate = Static<typeof InvitationCreate>;
export const Invitation = Type.Object({ id: Uuid, org_id: Uuid, email: Type.String(), role: Role });
export type Invitation = Static<typeof Invitation>;
export const OrgInvitationList = Type.Object({
  invitations: Type.Array(Type.Object({ id: Uuid, email: Type.String(), role: Role })),
  ...nextPage,
});
export type OrgInvitationList = Static<typeof OrgInvitationList>;
export const MyInvitationList = Type.Object({
  invitations: Type.Array(Type.Object({ id: Uuid, org_id: Uuid, org_name: Type.String(), role: Role })),
  ...nextPage,
});
export type MyInvitationList = Static<typeof MyInvitationList>;
export const InvitationParams = Type.Object({ id: Type.String() });
export const OrgInvitationParams = Type.Object({ id: Type.String(), invitation_id: Type.String() });
export const InvitationAccepted = Type.Object({ org_id: Uuid, role: Role });
export type InvitationAccepted = Static<typeof InvitationAccepted>;

export const ProjectCreate = Named;
export const Project = Type.Object({ id: Uuid, org_id: Uuid, name: Type.String() });
export type Project = Static<typeof Project>;
export const ProjectList = Type.Object({
  projects: Type.Array(Type.Object({ id: Uuid, name: Type.String() })),
  ...nextPage,
});
export type ProjectList = Static<typeof ProjectList>;

export const ApiKeyCreate = Type.Object({ name: Type.Optional(Type.String({ default: 'default' })) });
export type ApiKeyCreate = Static<typeof ApiKeyCreate>;
const keyFields = {
  id: Uuid,
  name: Type.String(),
  project_id: Uuid,
  key_prefix: Type.String({ description: 'The first characters of the token.' }),
};
export const ApiKeyMinted = Type.Object({
  ...keyFields,
  token: Type.String({ description: 'The key itself. Shown only here, and never stored.' }),
});
export type ApiKeyMinted = Static<typeof ApiKeyMinted>;
export const ApiKey = Type.Object({
  ...keyFields,
  created_at: Stamp,
  revoked_at: MaybeStamp,
  last_used_at: Type.Union([Stamp, Type.Null()], { description: 'Up to half a minute late.' }),
});
export type ApiKey = Static<typeof ApiKey>;
export const ApiKeyList = Type.Object({ api_keys: Type.Array(ApiKey), ...nextPage });
export type ApiKeyList = Static<typeof ApiKeyList>;
export const ApiKeyListQuery = Type.Object({
  ...pageFields,
  include_revoked: Type.Optional(Type.Boolean({ default: false })),
});
export const ApiKeyParams = Type.Object({ id: Type.String() });
export const ApiKeyRevoked = Type.Object({ revoked: Uuid });

export const AuditQuery = PageQuery;
export const AuditEntry = Type.Object({
  id: Uuid,
  created_at: Stamp,
  actor: Type.Object({
    kind: Type.Enum(['user', 'api_key', 'operator', 'system'] as const),
    id: Type.Union([Type.String(), Type.Null()]),
    name: Type.Union([Type.String(), Type.Null()], {
      description: 'The e-mail address of a user, or the name of an API key, at the time.',
    }),
  }),
  action: Type.String({ description: 'As in `member.remove`.' }),
  target: Type.Object({ kind: Type.String(), id: Type.String() }),
  project_id: Type.Union([Uuid, Type.Null()]),
  details: Type.Object({}, { additionalProperties: true, description: 'Further details.' }),
  ip: Type.Union([Type.String(), Type.Null()]),
  user_agent: Type.Union([Type.String(), Type.Null()]),
  outcome: Type.Enum(['done', 'refused'] as const),
});
export type AuditEntry = Static<typeof AuditEntry>;
export const AuditList = Type.Object({ entries: Type.Array(AuditEntry), next_cursor: NextCursor });
export type AuditList = Static<typeof AuditList>;

export const AuthConfig = Type.Object({
  issuer: Type.String({ description: 'OpenID Connect issuer; its discovery document has the endpoints.' }),
  client_id: Type.String({
    description: 'Public client of the CLI: device code, or authorization code with PKCE.',
  }),
  audience: Type.String({ description: 'Required audience of access tokens.' }),
  scopes: Type.Array(Type.String()),
});
export type AuthConfig = Static<typeof AuthConfig>;

/** Cursors of the audit log. */
export const AUDIT_CURSORS = cursorKind(4);
