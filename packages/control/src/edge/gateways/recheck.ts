import { queryAll, queryOne, statement, type Database } from '@releap/database';
import type { GrantIndex } from './grant-index.ts';
import type { HeldGrant } from './grant-index.ts';
import type { Resolved, ResolvedTarget } from './target-resolver.ts';

/**
 * Triggers record what grants depend on as it changes (migration "grant-changes"). Longer than a lookup that has read the state of before
 * may take, and than the pause between two passes: a change is seen by several of them.
 */
const RECENT_MS = 30_000;
/** Every grant is rechecked so often, whatever was recorded. */
const ALL_MS = 30_000;
/** How long changes stay recorded. */
const KEEP_MS = 600_000;
const KEEP_ROWS = 5_000;

/** $1 milliseconds */
const CHANGES = statement<{ subject: string }>(
  'gateway-grant-changes',
  `select distinct subject from grant_changes where at > clock_timestamp() - $1 * interval '1 millisecond'`,
);
/** $1 milliseconds, $2 rows */
const FORGET_CHANGES = statement<{ n: number }>(
  'gateway-grant-changes-forget',
  `with gone as (
     delete from grant_changes where ctid = any (array(
       select ctid from grant_changes where at < clock_timestamp() - $1 * interval '1 millisecond' order by at limit $2)) returning 1
   ) select count(*)::integer as n from gone`,
);

const REVOKED_KEYS = statement<{ id: string }>(
  'gateway-revoked-keys',
  `select t.id from unnest($1::uuid[]) as t(id)
    where not exists (select 1 from api_keys k where k.id = t.id and k.revoked_at is null)`,
);
const DELETED_PROJECTS = statement<{ id: string }>(
  'gateway-deleted-projects',
  'select id from projects where id = any($1::uuid[]) and deleted_at is not null',
);
const MOVED_RUNNERS = statement<{ id: string; forgotten: boolean }>(
  'gateway-moved-runners',
  `select t.id, r.id is null or r.forgotten_at is not null as forgotten
     from unnest($1::uuid[], $2::text[]) as t(id, data_url) left join runners r on r.id = t.id
    where r.data_url is distinct from t.data_url or r.forgotten_at is not null`,
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
  'select id, revision::integer as revision from function_states where id = any($1::uuid[])',
);

/** Revokes grants that have become invalid. */
export class GrantRecheck {
  readonly #database: Database;
  readonly #grants: GrantIndex;
  /** When all are rechecked next, on the monotonic clock. */
  #allAt = 0;
  #succeededAt = -Infinity;

  constructor(database: Database, grants: GrantIndex) {
    this.#database = database;
    this.#grants = grants;
  }

  /** One statement over the recent changes, and then those of `recheck` for the grants that depend on one of them, usually none. */
  async pass(): Promise<void> {
    const startedAt = performance.now();
    const isAll = startedAt >= this.#allAt || startedAt - this.#succeededAt > RECENT_MS / 2;
    await recheck(this.#database, isAll ? [...this.#grants] : await this.#changed());
    this.#succeededAt = startedAt;
    if (isAll) this.#allAt = startedAt + ALL_MS;
  }

  async #changed(): Promise<HeldGrant[]> {
    if (this.#grants.size === 0) return [];
    const rows = await queryAll(this.#database.pool, CHANGES, [RECENT_MS]);
    const changed = new Set(rows.map(({ subject }) => subject));
    const now = Date.now();
    return [...this.#grants].filter(
      ({ resolved }) =>
        resolved !== undefined &&
        ((resolved.expiresAt !== undefined && resolved.expiresAt.getTime() <= now) ||
          (changed.size > 0 && dependencies(resolved).some((id) => changed.has(id)))),
    );
  }
}

/** Forgets changes that every server has seen. */
export async function forgetGrantChanges(database: Database, signal: AbortSignal): Promise<void> {
  for (let gone = KEEP_ROWS; gone === KEEP_ROWS && !signal.aborted; )
    gone = (await queryOne(database.pool, FORGET_CHANGES, [KEEP_MS, KEEP_ROWS]))?.n ?? 0;
}

function dependencies(resolved: Resolved): string[] {
  const { credential } = resolved;
  const ids = [credential.projectId];
  if (credential.type === 'apiKey') ids.push(credential.keyId);
  if (credential.type === 'preview' && credential.link !== undefined) ids.push(credential.link);
  if ('function' in resolved) return [...ids, resolved.function.id];
  if (resolved.endpoint !== undefined) ids.push(resolved.endpoint.id);
  return [...ids, resolved.runnerId];
}

/**
 * Rechecks the dependencies of these grants and revokes invalid ones: keys, projects and endpoints that any server has
 * revoked, deleted or made private, expired tokens, ended links, forgotten runners, runners with another address, functions with another revision. One
 * pass costs six statements over distinct ids, for any number of grants and requests.
 */
async function recheck(database: Database, grants: readonly HeldGrant[]): Promise<void> {
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
  const gone = new Map(moved.map(({ id, forgotten }) => [id, forgotten]));
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
    // What a forgotten host still sends is not passed on.
    if (hasLostAccess(grant.resolved, isPublic) || gone.get(runnerId) === true) grant.revoke(true);
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
