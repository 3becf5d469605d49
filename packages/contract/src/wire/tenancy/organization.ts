/** Users, organizations, their members and invitations, and the audit log. */
import { Type, type Static } from 'typebox';
import { BAD_NAME, Named, UNKNOWN_ORGANIZATION } from '../platform/fields.ts';
import type { Operation } from '../platform/operation.ts';
import { cursorKind, NextCursor, nextPage, OptionalPageQuery, PageQuery } from '../platform/paging.ts';

const Uuid = Type.String({ format: 'uuid' });
const Stamp = Type.String({ format: 'date-time', description: 'RFC 3339.' });

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

export const OrgParams = Type.Object({ id: Type.String({ description: 'Id of the organization.' }) });
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

/** Cursors of the audit log. */
export const AUDIT_CURSORS = cursorKind(4);

const notOwner = 'The caller is a member and not an owner.';

export const organizationOperations = {
  getMe: {
    method: 'GET',
    path: '/me',
    tag: 'Organizations',
    summary: 'Read the signed-in user',
    security: 'management',
    success: { status: 200, response: { description: 'The user.', schema: User } },
    errors: {},
  },
  createOrg: {
    method: 'POST',
    path: '/orgs',
    tag: 'Organizations',
    summary: 'Create an organization; the caller becomes its owner',
    security: 'management',
    body: OrgWrite,
    idempotent: true,
    success: { status: 200, response: { description: 'Made.', schema: OrgCreated } },
    codes: ['limit_reached'],
    errors: { 400: BAD_NAME, 409: 'The caller is a member of the most organizations allowed.' },
  },
  listOrgs: {
    method: 'GET',
    path: '/orgs',
    tag: 'Organizations',
    summary: "List the caller's organizations",
    security: 'management',
    query: OptionalPageQuery,
    items: 'organizations',
    success: {
      status: 200,
      response: {
        description: 'One page, or all of them; the personal one first.',
        schema: OrganizationList,
      },
    },
    errors: {},
  },
  getOrg: {
    method: 'GET',
    path: '/orgs/:id',
    tag: 'Organizations',
    summary: 'Read an organization',
    security: 'management',
    params: OrgParams,
    success: { status: 200, response: { description: 'The organization.', schema: Organization } },
    errors: { 404: UNKNOWN_ORGANIZATION },
  },
  updateOrg: {
    method: 'PATCH',
    path: '/orgs/:id',
    tag: 'Organizations',
    summary: 'Rename an organization (owners)',
    security: 'management',
    params: OrgParams,
    body: OrgWrite,
    success: { status: 200, response: { description: 'Renamed.', schema: OrgRenamed } },
    codes: ['owner_required'],
    errors: { 400: BAD_NAME, 403: notOwner, 404: UNKNOWN_ORGANIZATION },
  },
  deleteOrg: {
    method: 'DELETE',
    path: '/orgs/:id',
    tag: 'Organizations',
    summary: 'Delete an organization and everything in it (owners)',
    description:
      'It is no longer visible at once, and its keys stop working; its sandboxes, images and other contents are removed in the background.',
    security: 'management',
    params: OrgParams,
    success: { status: 200, response: { description: 'Deleted.', schema: Deleted } },
    codes: ['owner_required', 'personal_organization'],
    errors: { 403: notOwner, 404: UNKNOWN_ORGANIZATION, 409: 'A personal organization cannot be deleted.' },
  },
  listMembers: {
    method: 'GET',
    path: '/orgs/:id/members',
    tag: 'Organizations',
    summary: 'List the members of an organization',
    security: 'management',
    params: OrgParams,
    query: OptionalPageQuery,
    items: 'members',
    success: { status: 200, response: { description: 'One page, or all of them.', schema: MemberList } },
    errors: { 404: UNKNOWN_ORGANIZATION },
  },
  removeMember: {
    method: 'DELETE',
    path: '/orgs/:id/members/:user_id',
    tag: 'Organizations',
    summary: 'Remove a member (owners)',
    security: 'management',
    params: MemberParams,
    success: { status: 200, response: { description: 'Removed.', schema: MemberRemoved } },
    codes: ['owner_required', 'last_owner'],
    errors: {
      403: notOwner,
      404: `${UNKNOWN_ORGANIZATION} Or the user is not a member.`,
      409: 'The last owner cannot be removed.',
    },
  },
  createInvitation: {
    method: 'POST',
    path: '/orgs/:id/invitations',
    tag: 'Organizations',
    summary: 'Invite a person by e-mail address (owners)',
    description: `Valid ${INVITATION_DAYS} days. Inviting the same address again refreshes the pending invitation. No e-mail is sent: the invited person finds it in \`GET /invitations\`.`,
    security: 'management',
    params: OrgParams,
    body: InvitationCreate,
    success: { status: 200, response: { description: 'Invited.', schema: Invitation } },
    codes: ['owner_required', 'personal_organization', 'limit_reached'],
    errors: {
      400: 'Not an e-mail address, or the role is not owner or member.',
      403: notOwner,
      404: UNKNOWN_ORGANIZATION,
      409: 'It is a personal organization, or has the most pending invitations allowed.',
    },
  },
  listOrgInvitations: {
    method: 'GET',
    path: '/orgs/:id/invitations',
    tag: 'Organizations',
    summary: 'List the pending invitations of an organization (owners)',
    security: 'management',
    params: OrgParams,
    query: OptionalPageQuery,
    items: 'invitations',
    success: {
      status: 200,
      response: { description: 'One page, or all of them.', schema: OrgInvitationList },
    },
    codes: ['owner_required'],
    errors: { 403: notOwner, 404: UNKNOWN_ORGANIZATION },
  },
  revokeInvitation: {
    method: 'DELETE',
    path: '/orgs/:id/invitations/:invitation_id',
    tag: 'Organizations',
    summary: 'Revoke an invitation (owners)',
    security: 'management',
    params: OrgInvitationParams,
    success: { status: 200, response: { description: 'Taken back.', schema: Deleted } },
    codes: ['owner_required'],
    errors: { 403: notOwner, 404: `${UNKNOWN_ORGANIZATION} Or there is no such pending invitation.` },
  },
  listInvitations: {
    method: 'GET',
    path: '/invitations',
    tag: 'Organizations',
    summary: "List the pending invitations for the caller's e-mail address",
    security: 'management',
    query: OptionalPageQuery,
    items: 'invitations',
    success: {
      status: 200,
      response: { description: 'One page, or all of them.', schema: MyInvitationList },
    },
    errors: {},
  },
  acceptInvitation: {
    method: 'POST',
    path: '/invitations/:id/accept',
    tag: 'Organizations',
    summary: 'Accept an invitation',
    description: 'A member who accepts an invitation to a lower role keeps the higher one.',
    security: 'management',
    params: InvitationParams,
    success: { status: 200, response: { description: 'A member now.', schema: InvitationAccepted } },
    codes: ['email_not_verified', 'other_recipient', 'limit_reached'],
    errors: {
      403: "It is for another e-mail address, or the caller's is not verified.",
      404: 'It is unknown, already accepted, revoked or expired.',
      409: 'The organization has the most members, or the caller is a member of the most organizations, allowed.',
    },
  },
  listAudit: {
    method: 'GET',
    path: '/orgs/:id/audit',
    tag: 'Organizations',
    summary: 'Read the audit log of an organization, newest first (owners)',
    security: 'management',
    params: OrgParams,
    query: AuditQuery,
    items: 'entries',
    success: { status: 200, response: { description: 'One page.', schema: AuditList } },
    codes: ['owner_required'],
    errors: { 400: 'The cursor is malformed.', 403: notOwner, 404: UNKNOWN_ORGANIZATION },
  },
} as const satisfies Record<string, Operation>;
