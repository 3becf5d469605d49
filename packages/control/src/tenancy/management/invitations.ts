import {
  badRequest,
  conflict,
  emailKey,
  forbidden,
  INVITATION_DAYS,
  isUuid,
  MANAGEMENT_BOUNDS,
  newUuid,
  notFound,
  operations,
  quote,
  readEmail,
  type ApiError,
  type Invitation,
  type InvitationAccepted,
  type MyInvitationList,
  type OrgInvitationList,
  type Role,
  LIST_CURSORS,
} from '@releap/contract';
import { queryOne, statement } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { requireOrg } from './access.ts';
import { writeAudit } from './audit.ts';
import { asOwner, type ManagementContext } from './context.ts';
import { pagedList } from '../../platform/paged-list.ts';

const PENDING = 'accepted_at is null and expires_at > now()';

/** $1 id, $2 organization, $3 address, $4 its key, $5 role, $6 inviting user, $7 days */
const PUT = statement<Invitation>(
  'invitation-put',
  `insert into invitations (id, org_id, email, email_key, role, invited_by, expires_at)
   values ($1, $2, $3, $4, $5, $6, now() + $7 * interval '1 day')
   on conflict (org_id, email_key) where accepted_at is null do update
     set email = excluded.email, role = excluded.role, invited_by = excluded.invited_by,
         expires_at = excluded.expires_at, created_at = now()
   returning id, org_id, email, role`,
);
const OLDEST_FIRST = [
  { sql: 'i.created_at', type: 'timestamptz' },
  { sql: 'i.id', type: 'uuid' },
] as const;
const OF_ORG = pagedList<OrgInvitationList['invitations'][number]>(
  'invitations-of-org',
  LIST_CURSORS.orgInvitations,
  {
    columns: 'i.id, i.email, i.role',
    from: 'invitations i',
    where: `i.org_id = $1 and ${PENDING}`,
    parameters: 1,
    keys: OLDEST_FIRST,
  },
);
const OF_EMAIL = pagedList<MyInvitationList['invitations'][number]>(
  'invitations-of-email',
  LIST_CURSORS.myInvitations,
  {
    columns: 'i.id, i.org_id, o.name as org_name, i.role',
    from: 'invitations i join organizations o on o.id = i.org_id',
    where: `i.email_key = $1 and ${PENDING} and o.deleted_at is null`,
    parameters: 1,
    keys: OLDEST_FIRST,
  },
);
interface Found {
  id: string;
  org_id: string;
  email_key: string;
  role: Role;
}
const FIND = statement<Found>(
  'invitation-find',
  `select i.id, i.org_id, i.email_key, i.role from invitations i join organizations o on o.id = i.org_id
    where i.id = $1 and ${PENDING} and o.deleted_at is null`,
);
/** Accepting never lowers a role: an owner stays an owner. */
const JOIN = statement<{ role: Role }>(
  'member-join',
  `insert into members (org_id, user_id, role) values ($1, $2, $3)
   on conflict (org_id, user_id) do update
     set role = case when excluded.role = 'owner' then 'owner' else members.role end
   returning role`,
);
const SIZES = statement<{ members: number; orgs: number }>(
  'membership-sizes',
  `select (select count(*)::integer from members where org_id = $1 and user_id <> $2) as members,
          (select count(*)::integer from members where user_id = $2 and org_id <> $1) as orgs`,
);

export function invitationRoutes({ management }: Planes, context: ManagementContext): void {
  const { database } = context;

  management.operation(operations.createInvitation, async ({ params, body, caller }): Promise<Invitation> => {
    const target = { kind: 'e-mail', id: body.email.slice(0, 254) };
    return asOwner(
      context,
      caller,
      params.id,
      { action: 'invitation.create', target },
      async (client, org) => {
        if (org.personal) {
          throw conflict(
            'a personal organization cannot have other members: create another organization',
            'personal_organization',
          );
        }
        const email = readEmail(body.email);
        if (email === null) throw badRequest(`email must be an e-mail address, but was ${quote(body.email)}`);
        const role = body.role ?? 'member';
        const key = emailKey(email);
        await client.query(
          'delete from invitations where org_id = $1 and accepted_at is null and expires_at <= now() and email_key <> $2',
          [org.id, key],
        );
        const { rows } = await client.query<{ n: number }>(
          'select count(*)::integer as n from invitations where org_id = $1 and accepted_at is null and email_key <> $2',
          [org.id, key],
        );
        const most = MANAGEMENT_BOUNDS.invitations;
        if ((rows[0]?.n ?? 0) >= most) {
          throw conflict(
            `the organization has ${most} pending invitations, which is the most allowed: revoke one first`,
            'limit_reached',
          );
        }
        const values = [newUuid(), org.id, email, key, role, caller.userId, INVITATION_DAYS];
        const invitation = await queryOne(client, PUT, values);
        if (invitation === undefined) throw new Error('an invitation was not written');
        await writeAudit(client, {
          actor: caller,
          orgId: org.id,
          action: 'invitation.create',
          target: { kind: 'invitation', id: invitation.id },
          details: { email, role },
        });
        return invitation;
      },
    );
  });

  management.operation(
    operations.listOrgInvitations,
    async ({ params, query, caller }): Promise<OrgInvitationList> => {
      const org = await requireOrg(database.pool, caller, params.id, 'owner');
      const most = MANAGEMENT_BOUNDS.invitations;
      const { rows, next } = await OF_ORG.page(database.pool, [org.id], query, { most });
      return { invitations: rows, ...next };
    },
  );

  management.operation(operations.revokeInvitation, async ({ params, caller }) => {
    const what = { action: 'invitation.revoke', target: { kind: 'invitation', id: params.invitation_id } };
    return asOwner(context, caller, params.id, what, async (client, org) => {
      const { rows } = isUuid(params.invitation_id)
        ? await client.query<{ id: string; email: string }>(
            'delete from invitations where id = $1 and org_id = $2 and accepted_at is null returning id, email',
            [params.invitation_id, org.id],
          )
        : { rows: [] };
      if (rows[0] === undefined) throw invitationNotFound(params.invitation_id);
      const details = { email: rows[0].email };
      await writeAudit(client, { actor: caller, orgId: org.id, ...what, details });
      return { deleted: rows[0].id };
    });
  });

  management.operation(operations.listInvitations, async ({ query, caller }): Promise<MyInvitationList> => {
    // An unverified address may belong to another person.
    if (caller.emailKey === '') return { invitations: [] };
    const most = MANAGEMENT_BOUNDS.invitations;
    const { rows, next } = await OF_EMAIL.page(database.pool, [caller.emailKey], query, { most });
    return { invitations: rows, ...next };
  });

  management.operation(
    operations.acceptInvitation,
    async ({ params, caller }): Promise<InvitationAccepted> => {
      const { id } = params;
      return database.transaction(async (client) => {
        const find = async (): Promise<Found> => {
          const found = isUuid(id) ? await queryOne(client, FIND, [id]) : undefined;
          if (found === undefined) throw invitationNotFound(id);
          if (found.email_key === caller.emailKey) return found;
          throw found.email_key === emailKey(caller.email)
            ? forbidden(
                `your e-mail address ${quote(caller.email)} is not verified at your issuer`,
                'email_not_verified',
              )
            : forbidden(
                `invitation ${quote(id)} is addressed to a different e-mail address than yours`,
                'other_recipient',
              );
        };
        const { org_id: orgId } = await find();
        await client.query('select 1 from organizations where id = $1 for no key update', [orgId]);
        // A concurrent accept, invitation or deletion of the organization may have committed first.
        const invitation = await find();
        const sizes = await queryOne(client, SIZES, [orgId, caller.userId]);
        const { membersPerOrganization, organizationsPerUser } = MANAGEMENT_BOUNDS;
        if ((sizes?.members ?? 0) >= membersPerOrganization) {
          throw conflict(
            `the organization has ${membersPerOrganization} members, which is the most allowed`,
            'limit_reached',
          );
        }
        if ((sizes?.orgs ?? 0) >= organizationsPerUser) {
          throw conflict(
            `you are a member of ${organizationsPerUser} organizations, which is the most allowed`,
            'limit_reached',
          );
        }
        const joined = await queryOne(client, JOIN, [orgId, caller.userId, invitation.role]);
        await client.query('update invitations set accepted_at = now(), accepted_by = $2 where id = $1', [
          invitation.id,
          caller.userId,
        ]);
        const role = joined?.role ?? invitation.role;
        await writeAudit(client, {
          actor: caller,
          orgId,
          action: 'invitation.accept',
          target: { kind: 'invitation', id: invitation.id },
          details: { role },
        });
        return { org_id: orgId, role };
      });
    },
  );
}

function invitationNotFound(id: string): ApiError {
  return notFound(
    `invitation ${quote(id)} not found: it may have been accepted already or have expired`,
    'invitation_not_found',
  );
}
