import { queryAll, statement, type Database } from '@releap/database';
import type { GrantIndex } from './grant-index.ts';
import type { Resolved, ResolvedTarget } from './target-resolver.ts';

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

const ENDPOINTS = statement<{ id: string; public: boolean }>(
  'gateway-endpoints',
  'select id, public from endpoints where id = any($1::uuid[])',
);

const ENDED_LINKS = statement<{ link: string }>(
  'gateway-ended-links',
  `select t.link from unnest($1::text[]) as t(link)
    where not exists (select 1 from preview_links l where l.digest = decode(t.link, 'hex') and l.expires_at > now())`,
);

/** Those of a deleted function are not there. */
const REVISIONS = statement<{ id: string; revision: number }>(
  'gateway-function-revisions',
  'select id, revision::integer as revision from functions where id = any($1::uuid[])',
);

/**
 * Rechecks the dependencies of all held grants and revokes invalid ones: keys, projects and endpoints that any server has
 * revoked, deleted or made private, expired tokens, ended links, runners with another address, functions with another revision. One pass costs six statements over
 * distinct ids, for any number of grants and requests.
 */
export async function recheckGrants(database: Database, grants: GrantIndex): Promise<void> {
  const keys = new Set<string>();
  const projects = new Set<string>();
  const endpoints = new Set<string>();
  const links = new Set<string>();
  const runners = new Map<string, [runnerId: string, dataUrl: string]>();
  const functions = new Set<string>();
  for (const { resolved } of grants) {
    if (resolved === undefined) continue;
    const { credential } = resolved;
    if (credential.type === 'apiKey') keys.add(credential.keyId);
    if (credential.type === 'preview' && credential.link !== undefined) links.add(credential.link);
    projects.add(credential.projectId);
    if ('function' in resolved) {
      functions.add(resolved.function.id);
      continue;
    }
    const { runnerId, dataUrl } = resolved;
    if (resolved.endpoint !== undefined) endpoints.add(resolved.endpoint.id);
    runners.set(`${runnerId} ${dataUrl}`, [runnerId, dataUrl]);
  }
  if (projects.size === 0) return;
  const [revoked, deleted, moved, exposed, endedLinks, revisions] = await Promise.all([
    queryAll(database.pool, REVOKED_KEYS, [[...keys]]),
    queryAll(database.pool, DELETED_PROJECTS, [[...projects]]),
    queryAll(database.pool, MOVED_RUNNERS, [
      [...runners.values()].map(([id]) => id),
      [...runners.values()].map(([, url]) => url),
    ]),
    endpoints.size === 0 ? [] : queryAll(database.pool, ENDPOINTS, [[...endpoints]]),
    links.size === 0 ? [] : queryAll(database.pool, ENDED_LINKS, [[...links]]),
    functions.size === 0 ? [] : queryAll(database.pool, REVISIONS, [[...functions]]),
  ]);
  if (revoked.length + deleted.length + moved.length + endpoints.size + functions.size === 0) return;
  const revisionOf = new Map(revisions.map(({ id, revision }) => [id, revision]));
  const visibility = new Map(exposed.map(({ id, public: isPublic }) => [id, isPublic]));
  const ended = new Set([
    ...[...revoked, ...deleted].map(({ id }) => id),
    ...endedLinks.map(({ link }) => link),
  ]);
  const gone = new Set(moved.map(({ id }) => id));
  for (const grant of grants) {
    if (grant.resolved === undefined) continue;
    if (usesCredential(grant.resolved, ended)) {
      grant.revoke(true);
      continue;
    }
    if ('function' in grant.resolved) {
      const { id, revision } = grant.resolved.function;
      if (revisionOf.get(id) !== revision) grant.revoke(false);
      continue;
    }
    const { endpoint, runnerId } = grant.resolved;
    const isPublic = endpoint && visibility.get(endpoint.id);
    if (hasLostAccess(grant.resolved, isPublic)) grant.revoke(true);
    else if (gone.has(runnerId) || isPublic !== endpoint?.public) grant.revoke(false);
  }
}

function usesCredential({ credential }: Resolved, ended: ReadonlySet<string>): boolean {
  if (ended.has(credential.projectId)) return true;
  if (credential.type === 'apiKey') return ended.has(credential.keyId);
  return credential.type === 'preview' && credential.link !== undefined && ended.has(credential.link);
}

/** @param isPublic present visibility of its endpoint; undefined when there is none */
function hasLostAccess(
  { endpoint, credential, expiresAt }: ResolvedTarget,
  isPublic: boolean | undefined,
): boolean {
  if (endpoint === undefined) return false;
  if (isPublic === undefined) return true;
  if (credential.type === 'public') return !isPublic;
  return expiresAt !== undefined && expiresAt.getTime() <= Date.now();
}
