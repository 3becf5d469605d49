import {
  conflict,
  isUuid,
  notFound,
  operations,
  quote,
  type Member,
  type MemberList,
} from '@releap/contract';
import { all, statement } from '@releap/database';
import type { Planes } from '../http/planes.ts';
import { requireOrg } from './access.ts';
import { writeAudit } from './audit.ts';
import { asOwner, type ManagementContext } from './context.ts';

const LIST = statement<Member>(
  'members-of-org',
  `select u.id as user_id, u.email, u.name, m.role from members m join users u on u.id = m.user_id
    where m.org_id = $1 order by m.created_at, u.id`,
);

export function memberRoutes({ management }: Planes, context: ManagementContext): void {
  const { database } = context;

  management.operation(operations.listMembers, async ({ params, caller }): Promise<MemberList> => {
    const org = await requireOrg(database.pool, caller, params.id);
    return { members: await all(database.pool, LIST, [org.id]) };
  });

  management.operation(operations.removeMember, async ({ params, caller }) => {
    const { user_id: userId } = params;
    const what = { action: 'member.remove', target: { kind: 'user', id: userId } };
    return asOwner(context, caller, params.id, what, async (client, org) => {
      // Under the organization's lock: two owners who remove each other come one after the other.
      const members = await all(client, LIST, [org.id]);
      const gone = isUuid(userId)
        ? members.find((member) => member.user_id === userId.toLowerCase())
        : undefined;
      if (gone === undefined) throw notFound(`user ${quote(userId)} is not a member of this organization`);
      if (gone.role === 'owner' && members.filter((member) => member.role === 'owner').length === 1) {
        throw conflict(
          'the last owner of an organization cannot be removed: make somebody else an owner first',
        );
      }
      await client.query('delete from members where org_id = $1 and user_id = $2', [org.id, gone.user_id]);
      const details = { email: gone.email, role: gone.role };
      await writeAudit(client, { actor: caller, orgId: org.id, ...what, details });
      return { removed: gone.user_id };
    });
  });
}
