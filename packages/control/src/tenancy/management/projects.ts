import {
  cleanName,
  conflict,
  MANAGEMENT_BOUNDS,
  operations,
  quote,
  type Project,
  type ProjectList,
  LIST_CURSORS,
} from '@releap/contract';
import { isUniqueViolation } from '@releap/database';
import type { Planes } from '../../platform/http/planes.ts';
import { requireOrg, requireProject } from './access.ts';
import { writeAudit } from './audit.ts';
import type { ManagementContext } from './context.ts';
import { deleteProject } from './delete-projects.ts';
import { BY_TIME, pagedList } from '../../platform/paged-list.ts';

const LIST = pagedList<ProjectList['projects'][number]>('projects-of-org', LIST_CURSORS.projects, {
  columns: 'id, name',
  from: 'projects',
  where: 'org_id = $1 and deleted_at is null',
  parameters: 1,
  keys: BY_TIME,
});

export function projectRoutes(
  { management }: Planes,
  { database, authenticator, events }: ManagementContext,
): void {
  management.operation(operations.createProject, async ({ params, body, caller, ids }): Promise<Project> => {
    const id = ids.uuid();
    return database.transaction(async (client) => {
      const org = await requireOrg(client, caller, params.id, 'member', { lock: true });
      if (ids.retried) {
        const made = await client.query<{ name: string }>(
          'select name from projects where id = $1 and org_id = $2',
          [id, org.id],
        );
        if (made.rows[0] !== undefined) return { id, org_id: org.id, name: made.rows[0].name };
      }
      const name = cleanName(body.name);
      const { rows } = await client.query<{ n: number }>(
        'select count(*)::integer as n from projects where org_id = $1 and deleted_at is null',
        [org.id],
      );
      const most = MANAGEMENT_BOUNDS.projectsPerOrganization;
      if ((rows[0]?.n ?? 0) >= most) {
        throw conflict(`the organization has ${most} projects, which is the most allowed`, 'limit_reached');
      }
      try {
        await client.query('insert into projects (id, org_id, name) values ($1, $2, $3)', [id, org.id, name]);
      } catch (error) {
        if (!isUniqueViolation(error, 'projects_by_name')) throw error;
        throw conflict(`the organization already has a project named ${quote(name)}`, 'name_exists');
      }
      const target = { kind: 'project', id };
      const entry = { actor: caller, orgId: org.id, projectId: id, action: 'project.create', target };
      await writeAudit(client, { ...entry, details: { name } });
      return { id, org_id: org.id, name };
    });
  });

  management.operation(operations.listProjects, async ({ params, query, caller }): Promise<ProjectList> => {
    const org = await requireOrg(database.pool, caller, params.id);
    const most = MANAGEMENT_BOUNDS.projectsPerOrganization;
    const { rows, next } = await LIST.page(database.pool, [org.id], query, { most });
    return { projects: rows, ...next };
  });

  management.operation(operations.deleteProject, async ({ params, caller }) => {
    const project = await database.transaction(async (client) => {
      const project = await requireProject(client, caller, params.id, { lock: true });
      await deleteProject(client, project.id);
      await writeAudit(client, {
        actor: caller,
        orgId: project.orgId,
        projectId: project.id,
        action: 'project.delete',
        target: { kind: 'project', id: project.id },
        details: { name: project.name },
      });
      return project;
    });
    authenticator.forgetProjects([project.id]);
    events.emit('projects-deleted', [project.id]);
    return { deleted: project.id };
  });
}
