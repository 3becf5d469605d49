import { queryAll, statement, type Database } from '@releap/database';
import type { GrantIndex } from './grant-index.ts';
import type { ResolvedTarget } from './target-resolver.ts';

const REVOKED_KEYS = statement<{ id: string }>(
  'gateway-revoked-keys',
  `select t.id from unnest($1::uuid[]) as t(id)
    where not exists (select 1 from api_keys k where k.id = t.id and k.revoked_at is null)`,
);
const DELETED_PROJECTS = statement<{ id: string }>(
  'gateway-deleted-projects',
  'select id from projects where id = any($1::uuid[]) and deleted_at is not null',
);
const MOVED_RUNNERS = statement<{ id: string }>(
  'gateway-moved-runners',
  `select t.id from unnest($1::uuid[], $2::text[]) as t(id, data_url)
    where not exists (select 1 from runners r where r.id = t.id and r.data_url = t.data_url)`,
);

/**
 * Rechecks the dependencies of all held grants and revokes invalid ones: keys and projects that any server has revoked or
 * deleted, runners with another address. One pass costs three statements over distinct ids, for any number of grants
 * and requests.
 */
export async function recheckGrants(database: Database, grants: GrantIndex): Promise<void> {
  const keys = new Set<string>();
  const projects = new Set<string>();
  const runners = new Map<string, [runnerId: string, dataUrl: string]>();
  for (const { resolved } of grants) {
    if (resolved === undefined) continue;
    const { credential, runnerId, dataUrl } = resolved;
    if (credential.type === 'apiKey') keys.add(credential.keyId);
    projects.add(credential.projectId);
    runners.set(`${runnerId} ${dataUrl}`, [runnerId, dataUrl]);
  }
  if (projects.size === 0) return;
  const [revoked, deleted, moved] = await Promise.all([
    queryAll(database.pool, REVOKED_KEYS, [[...keys]]),
    queryAll(database.pool, DELETED_PROJECTS, [[...projects]]),
    queryAll(database.pool, MOVED_RUNNERS, [
      [...runners.values()].map(([id]) => id),
      [...runners.values()].map(([, url]) => url),
    ]),
  ]);
  if (revoked.length + deleted.length + moved.length === 0) return;
  const ended = new Set([...revoked, ...deleted].map(({ id }) => id));
  const gone = new Set(moved.map(({ id }) => id));
  for (const grant of grants) {
    if (grant.resolved === undefined) continue;
    if (usesCredential(grant.resolved, ended)) grant.revoke(true);
    else if (gone.has(grant.resolved.runnerId)) grant.revoke(false);
  }
}

function usesCredential({ credential }: ResolvedTarget, ended: ReadonlySet<string>): boolean {
  return ended.has(credential.projectId) || (credential.type === 'apiKey' && ended.has(credential.keyId));
}
