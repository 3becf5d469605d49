/** Deletes projects: clients no longer see them once this commits. Their contents are torn down afterwards. */
import type { Queryable } from '@releap/database';
import { revokeApiKeysOf } from '../../platform/auth/api-keys.ts';

/** Marks the project as deleted and revokes its keys, inside the transaction of the deletion. */
export async function deleteProject(on: Queryable, projectId: string): Promise<void> {
  await on.query('update projects set deleted_at = now(), teardown_after = now() where id = $1', [projectId]);
  await revokeApiKeysOf(on, [projectId]);
}

/** The same for all projects of an organization. @returns their ids */
export async function deleteProjectsOf(on: Queryable, orgId: string): Promise<string[]> {
  const { rows } = await on.query<{ id: string }>(
    'update projects set deleted_at = now(), teardown_after = now() where org_id = $1 and deleted_at is null returning id',
    [orgId],
  );
  const ids = rows.map(({ id }) => id);
  await revokeApiKeysOf(on, ids);
  return ids;
}
