import {
  conflict,
  isUuid,
  notFound,
  operations,
  quote,
  type Member,
  type MemberList,
  LIST_CURSORS,
} from '@releap/contract';
import { queryOne, statement } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { requireOrg } from './access.ts';
import { writeAudit } from './audit.ts';
import { asOwner, type ManagementContext } from './context.ts';
import { pagedList } from '../../platform/paged-list.ts';

const LIST = pagedList<Member>('members-of-org', LIST_CURSORS.members, {
  columns: 'u.id as user_id, u.email, u.name, m.role',
  from: 'members m join users u on u.id = m.user_id',
  where: 'm.org_id = $1',
  parameters: 1,
  keys: [
    { sql: 'm.created_at', type: 'timestamptz' },
    { sql: 'u.id', type: 'uuid' },
  ],
});

/** One member, and the number of owners. $1 organization, $2 user */
const FIND = statement<Member & { owners: number }>(
  'member-of-org',
  `select u.id as user_id, u.email, u.name, m.role,
          (select count(*)::integer from members o where o.org_id = $1 and o.role = 'owner') as owners
     from members m join users u on u.id = m.user_id where m.org_id = $1 and m.user_id = $2`,
);

export function memberRoutes({ management }: Planes, context: ManagementContext): void {
  const { database } = context;

  management.operation(operations.listMembers, async ({ params, query, caller }): Promise<MemberList> => {
    const org = await requireOrg(database.pool, caller, params.id);
    const { rows, next } = await LIST.page(database.pool, [org.id], query);
    return { members: rows, ...next };
  });

  management.operation(operations.removeMember, async ({ params, caller }) => {
    const { user_id: userId } = params;
    const what = { action: 'member.remove', target: { kind: 'user', id: userId } };
    return asOwner(context, caller, params.id, what, async (client, org) => {
      const member = isUuid(userId)
        ? await queryOne(client, FIND, [org.id, userId.toLowerCase()])
        : undefined;
      if (member === undefined)
        throw notFound(`user ${quote(userId)} is not a member of this organization`, 'member_not_found');
      // The organization's lock serializes two owners who remove each other.
      if (member.role === 'owner' && member.owners === 1) {
        throw conflict(
          'the last owner of an organization cannot be removed: make another member an owner first',
          'last_owner',
        );
      }
      await client.query('delete from members where org_id = $1 and user_id = $2', [org.id, member.user_id]);
      const details = { email: member.email, role: member.role };
      await writeAudit(client, { actor: caller, orgId: org.id, ...what, details });
      return { removed: member.user_id };
    });
  });
}
