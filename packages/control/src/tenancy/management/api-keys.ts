import {
  cleanName,
  conflict,
  isUuid,
  MANAGEMENT_BOUNDS,
  notFound,
  operations,
  quote,
  type ApiKeyList,
  type ApiKeyMinted,
  LIST_CURSORS,
} from '@releap/contract';
import { queryOne, statement } from '@releap/database';
import { DEFAULT_KEY_NAME, mintApiKey, mintedKey, revokeApiKey } from '../../platform/auth/api-keys.ts';
import type { Planes } from '../../platform/http/planes.ts';
import { requireProject } from './access.ts';
import { writeAudit } from './audit.ts';
import type { ManagementContext } from './context.ts';
import { BY_TIME, pagedList } from '../../platform/paged-list.ts';

interface KeyRow {
  id: string;
  name: string;
  project_id: string;
  key_prefix: string;
  created_at: Date;
  revoked_at: Date | null;
  last_used_at: Date | null;
}

const LIST = pagedList<KeyRow>('api-keys-of-project', LIST_CURSORS.apiKeys, {
  columns: 'id, name, project_id, key_prefix, created_at, revoked_at, last_used_at',
  from: 'api_keys',
  where: 'project_id = $1 and (revoked_at is null or $2)',
  parameters: 2,
  keys: BY_TIME,
  direction: 'desc',
});
/** Of the caller's organizations only. $1 key, $2 user */
const FIND = statement<{ id: string; name: string; project_id: string; org_id: string }>(
  'api-key-of-user',
  `select k.id, k.name, k.project_id, p.org_id
     from api_keys k join projects p on p.id = k.project_id join organizations o on o.id = p.org_id
     join members m on m.org_id = o.id and m.user_id = $2
    where k.id = $1 and p.deleted_at is null and o.deleted_at is null`,
);

export function apiKeyRoutes({ management }: Planes, { database, authenticator }: ManagementContext): void {
  management.operation(
    operations.createApiKey,
    async ({ params, body, caller, ids }): Promise<ApiKeyMinted> => {
      const { key, replaced } = await database.transaction(async (client) => {
        const project = await requireProject(client, caller, params.id, { lock: true });
        const name = cleanName(body.name ?? DEFAULT_KEY_NAME);
        const generated = { id: ids.uuid(), token: ids.token('apiKey') };
        if (ids.retried) {
          const made = await client.query('select 1 from api_keys where id = $1 and project_id = $2', [
            generated.id,
            project.id,
          ]);
          if (made.rowCount === 1) return { key: mintedKey(project.id, name, generated), replaced: false };
        }
        const { rows } = await client.query<{ n: number; same: number }>(
          `select count(*)::integer as n, count(*) filter (where name = $2)::integer as same
           from api_keys where project_id = $1 and revoked_at is null`,
          [project.id, name],
        );
        const replaced = name === DEFAULT_KEY_NAME && (rows[0]?.same ?? 0) > 0;
        const most = MANAGEMENT_BOUNDS.keysPerProject;
        if ((rows[0]?.n ?? 0) >= most && !replaced) {
          throw conflict(
            `the project has ${most} active API keys, which is the most allowed: revoke one first`,
            'limit_reached',
          );
        }
        const key = await mintApiKey(client, project.id, name, { generated });
        await writeAudit(client, {
          actor: caller,
          orgId: project.orgId,
          projectId: project.id,
          action: 'api-key.create',
          target: { kind: 'api-key', id: key.id },
          details: { name, key_prefix: key.key_prefix, ...(replaced ? { replaces_default: true } : {}) },
        });
        return { key, replaced };
      });
      if (replaced) authenticator.forgetProjects([key.project_id]);
      return key;
    },
  );

  management.operation(operations.listApiKeys, async ({ params, query, caller }): Promise<ApiKeyList> => {
    const project = await requireProject(database.pool, caller, params.id);
    const revoked = query.include_revoked ?? false;
    const most = MANAGEMENT_BOUNDS.keysPerProject * (revoked ? 2 : 1);
    const { rows, next } = await LIST.page(database.pool, [project.id, revoked], query, { most });
    return {
      ...next,
      api_keys: rows.map((row) => ({
        id: row.id,
        name: row.name,
        project_id: row.project_id,
        key_prefix: row.key_prefix,
        created_at: row.created_at.toISOString(),
        revoked_at: row.revoked_at?.toISOString() ?? null,
        last_used_at: row.last_used_at?.toISOString() ?? null,
      })),
    };
  });

  management.operation(operations.revokeApiKey, async ({ params, caller }) => {
    const key = await database.transaction(async (client) => {
      const key = isUuid(params.id) ? await queryOne(client, FIND, [params.id, caller.userId]) : undefined;
      if (key === undefined) throw notFound(`API key ${quote(params.id)} not found`, 'api_key_not_found');
      if (await revokeApiKey(client, key.id)) {
        await writeAudit(client, {
          actor: caller,
          orgId: key.org_id,
          projectId: key.project_id,
          action: 'api-key.revoke',
          target: { kind: 'api-key', id: key.id },
          details: { name: key.name },
        });
      }
      return key;
    });
    authenticator.forgetProjects([key.project_id]);
    return { revoked: key.id };
  });
}
