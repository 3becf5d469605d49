import {
  cleanName,
  conflict,
  MANAGEMENT_BOUNDS,
  operations,
  type OrgCreated,
  type Organization,
  type OrganizationList,
  type User,
  LIST_CURSORS,
} from '@releap/contract';
import type { Planes } from '../../platform/http/planes.ts';
import { requireOrg } from './access.ts';
import { writeAudit } from './audit.ts';
import { asOwner, type ManagementContext } from './context.ts';
import { deleteProjectsOf } from './delete-projects.ts';
import { pagedList } from '../../platform/paged-list.ts';

const LIST = pagedList<Organization>('orgs-of-user', LIST_CURSORS.organizations, {
  columns: 'o.id, o.name, o.personal_of is not null as personal, m.role',
  from: 'members m join organizations o on o.id = m.org_id',
  where: 'm.user_id = $1 and o.deleted_at is null',
  parameters: 1,
  keys: [
    { sql: '(o.personal_of is null)', type: 'boolean' },
    { sql: 'o.created_at', type: 'timestamptz' },
    { sql: 'o.id', type: 'uuid' },
  ],
});

export function orgRoutes({ management }: Planes, context: ManagementContext): void {
  const { database, authenticator, events } = context;

  management.operation(
    operations.getMe,
    async ({ caller }): Promise<User> => ({ id: caller.userId, email: caller.email, name: caller.name }),
  );

  management.operation(operations.createOrg, async ({ body, caller, ids }): Promise<OrgCreated> => {
    const name = cleanName(body.name);
    const id = ids.uuid();
    if (ids.retried) {
      // An interrupted earlier attempt created it; no other client can know the id.
      const made = await database.pool.query<{ name: string }>(
        'select name from organizations where id = $1',
        [id],
      );
      if (made.rows[0] !== undefined) return { id, name: made.rows[0].name, personal: false };
    }
    await database.transaction(async (client) => {
      await client.query('select 1 from users where id = $1 for no key update', [caller.userId]);
      const { rows } = await client.query<{ n: number }>(
        'select count(*)::integer as n from members where user_id = $1',
        [caller.userId],
      );
      const most = MANAGEMENT_BOUNDS.organizationsPerUser;
      if ((rows[0]?.n ?? 0) >= most) {
        throw conflict(
          `you are a member of ${most} organizations, which is the most allowed`,
          'limit_reached',
        );
      }
      await client.query('insert into organizations (id, name) values ($1, $2)', [id, name]);
      await client.query(`insert into members (org_id, user_id, role) values ($1, $2, 'owner')`, [
        id,
        caller.userId,
      ]);
      const target = { kind: 'organization', id };
      await writeAudit(client, { actor: caller, orgId: id, action: 'org.create', target, details: { name } });
    });
    return { id, name, personal: false };
  });

  management.operation(operations.listOrgs, async ({ query, caller }): Promise<OrganizationList> => {
    const most = MANAGEMENT_BOUNDS.organizationsPerUser + 1;
    const { rows, next } = await LIST.page(database.pool, [caller.userId], query, { most });
    return { organizations: rows, ...next };
  });

  management.operation(
    operations.getOrg,
    async ({ params, caller }): Promise<Organization> => requireOrg(database.pool, caller, params.id),
  );

  management.operation(operations.updateOrg, async ({ params, body, caller }) => {
    const what = { action: 'org.rename', target: { kind: 'organization', id: params.id } };
    return asOwner(context, caller, params.id, what, async (client, org) => {
      const name = cleanName(body.name);
      await client.query('update organizations set name = $2 where id = $1', [org.id, name]);
      const details = { from: org.name, to: name };
      await writeAudit(client, { actor: caller, orgId: org.id, ...what, details });
      return { id: org.id, name };
    });
  });

  management.operation(operations.deleteOrg, async ({ params, caller }) => {
    const what = { action: 'org.delete', target: { kind: 'organization', id: params.id } };
    const { org, projects } = await asOwner(context, caller, params.id, what, async (client, org) => {
      if (org.personal)
        throw conflict(
          'a personal organization cannot be deleted: it belongs to its user',
          'personal_organization',
        );
      await client.query('update organizations set deleted_at = now() where id = $1', [org.id]);
      const projects = await deleteProjectsOf(client, org.id);
      await client.query('delete from invitations where org_id = $1', [org.id]);
      await client.query('delete from members where org_id = $1', [org.id]);
      const details = { name: org.name, projects: projects.length };
      await writeAudit(client, { actor: caller, orgId: org.id, ...what, details });
      return { org, projects };
    });
    authenticator.forgetProjects(projects);
    if (projects.length > 0) events.emit('projects-deleted', projects);
    return { deleted: org.id };
  });
}
