import { tokenDigest, tokenKind } from '@releap/contract';
import { queryAll, queryOne, statement, type Database } from '@releap/database';

/** Who calls on the workload plane: a project, by one of its API keys. */
export interface Principal {
  keyId: string;
  projectId: string;
  orgId: string;
  /** Of the project, else of its organization. */
  defaultRegion: string | null;
}

export interface Authenticator {
  /** The project of this API key; null when it is none, or revoked. A cached answer comes without a promise. */
  byApiKey(token: string): Principal | null | Promise<Principal | null>;
  /** The same without the cache, for an answer that is kept elsewhere as long as this cache keeps it. */
  byApiKeyNow(token: string): Promise<Principal | null>;
  /** Answers for keys of these projects are not used again: a key of theirs was revoked. */
  forgetProjects(projectIds: readonly string[]): void;
  /** Writes down when keys were last used, all in one statement. */
  flush(): Promise<void>;
}

const LOOKUP = statement<{
  key_id: string;
  project_id: string;
  org_id: string;
  default_region: string | null;
}>(
  'auth-api-key',
  `select k.id as key_id, k.project_id, p.org_id, coalesce(p.default_region, o.default_region) as default_region
     from api_keys k join projects p on p.id = k.project_id join organizations o on o.id = p.org_id
    where k.token_hash = $1 and k.revoked_at is null and p.deleted_at is null`,
);

const USED = statement(
  'auth-last-used',
  `update api_keys k set last_used_at = greatest(k.last_used_at, to_timestamp(t.at / 1000.0))
     from unnest($1::uuid[], $2::double precision[]) as t(id, at) where k.id = t.id`,
);

/** How long an answer is used again: the longest that a revoked key still works. */
const CACHE_MS = 900;
const CACHE_ENTRIES = 20_000;

interface Entry {
  until: number;
  answer: Principal | null | Promise<Principal | null>;
}

export function createAuthenticator(database: Database): Authenticator {
  const cache = new Map<string, Entry>();
  let used = new Map<string, number>();

  async function lookUp(digest: Buffer): Promise<Principal | null> {
    const row = await queryOne(database.pool, LOOKUP, [digest]);
    if (row === undefined) return null;
    return {
      keyId: row.key_id,
      projectId: row.project_id,
      orgId: row.org_id,
      defaultRegion: row.default_region,
    };
  }

  const note = (principal: Principal | null): Principal | null => {
    if (principal !== null) used.set(principal.keyId, Date.now());
    return principal;
  };

  return {
    byApiKey(token) {
      // What has not even the form of a key costs no look-up.
      if (tokenKind(token) !== 'apiKey') return null;
      const digest = tokenDigest(token);
      const key = digest.toString('latin1');
      const now = Date.now();
      const known = cache.get(key);
      if (known !== undefined && known.until > now) {
        return known.answer instanceof Promise ? known.answer : note(known.answer);
      }
      const answer = lookUp(digest).then(
        (principal) => {
          entry.answer = principal;
          return note(principal);
        },
        (error: unknown) => {
          if (cache.get(key) === entry) cache.delete(key);
          throw error;
        },
      );
      // Counted from before the question: an answer can be as old as its question.
      const entry: Entry = { until: now + CACHE_MS, answer };
      if (cache.size >= CACHE_ENTRIES) {
        for (const [old, { until }] of cache) if (until <= now) cache.delete(old);
        // All of them fresh: someone tries keys. Their misses must not push out everybody else for long.
        if (cache.size >= CACHE_ENTRIES) cache.clear();
      }
      cache.delete(key);
      cache.set(key, entry);
      return answer;
    },
    async byApiKeyNow(token) {
      return tokenKind(token) === 'apiKey' ? note(await lookUp(tokenDigest(token))) : null;
    },
    forgetProjects(projectIds) {
      if (projectIds.length === 0) return;
      const gone = new Set(projectIds);
      for (const [key, { answer }] of cache) {
        // What is being looked up may have been read before.
        if (answer instanceof Promise || (answer !== null && gone.has(answer.projectId))) cache.delete(key);
      }
    },
    async flush() {
      if (used.size === 0) return;
      const batch = used;
      used = new Map();
      try {
        await queryAll(database.pool, USED, [[...batch.keys()], [...batch.values()]]);
      } catch (error) {
        // With the next batch, which may know of a later use.
        used = new Map([...batch, ...used]);
        throw error;
      }
    },
  };
}
