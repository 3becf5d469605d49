/** The regions that organizations and projects use by default. Only the operator sets them. */
import { queryOne, statement, type Database } from '@releap/database';
import { writeAudit } from './audit.ts';

const SET = {
  organization: statement<{ org_id: string; project_id: string | null }>(
    'org-default-region',
    `update organizations set default_region = $2 where id = $1 and deleted_at is null
     returning id as org_id, null::uuid as project_id`,
  ),
  project: statement<{ org_id: string; project_id: string | null }>(
    'project-default-region',
    `update projects set default_region = $2 where id = $1 and deleted_at is null
     returning org_id, id as project_id`,
  ),
};

/**
 * Sandboxes, images and functions that name no region are made there from now on (callers are cached for a second).
 * @param region null: none of its own
 * @returns whether it exists
 */
export async function setDefaultRegion(
  database: Database,
  kind: 'organization' | 'project',
  id: string,
  region: string | null,
): Promise<boolean> {
  return await database.transaction(async (client) => {
    const set = await queryOne(client, SET[kind], [id, region]);
    if (set === undefined) return false;
    await writeAudit(client, {
      actor: { operator: 'operator' },
      orgId: set.org_id,
      ...(set.project_id === null ? {} : { projectId: set.project_id }),
      action: 'default-region.set',
      target: { kind, id },
      details: { region },
    });
    return true;
  });
}
