import { tokenDigest, tokenKind } from '@releap/contract';
import { queryAll, queryOne, statement, type Database } from '@releap/database';

/** The identity of the workload plane: a project, by one of its API keys. */
export interface Principal {
  keyId: string;
  projectId: string;
  orgId: string;
  /** The project's name, else its organization's. */
  defaultRegion: string | null;
}

export interface Authenticator {
  /** The project of this API key; null when it is unknown or revoked. A cached result is returned without a promise. */
  byApiKey(token: string): Principal | null | Promise<Principal | null>;
  /** The same without the cache, for a result that the caller caches. */
  byApiKeyNow(token: string): Promise<Principal | null>;
  /** Forgets cached results of these projects: a key of theirs was revoked. */
  forgetProjects(projectIds: readonly string[]): void;
  /** Writes the last use of keys, in one statement. */
  flush(): Promise<void>;
}

const LOOKUP = statement<{
  key_id: string;
  project_id: string;
  org_id: string;
  default_region: string | null;
}>(
  'auth-api-key',
  `select k.id as key_id, k.project_id, p.org_id, p.default_region
     from api_keys k join live_projects p on p.id = k.project_id
    where k.token_hash = $1 and k.revoked_at is null`,
);

const USED = statement(
  'auth-last-used',
  `update api_keys k set last_used_at = greatest(k.last_used_at, to_timestamp(t.at / 1000.0))
     from unnest($1::uuid[], $2::double precision[]) as t(id, at) where k.id = t.id`,
);

/** Lifetime of a cached result: the longest that a revoked key still works. */
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
      // A malformed key costs no lookup.
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
      // Counted from before the query: its result may be that old.
      const entry: Entry = { until: now + CACHE_MS, answer };
      if (cache.size >= CACHE_ENTRIES) {
        for (const [old, { until }] of cache) if (until <= now) cache.delete(old);
        // All entries are fresh: someone guesses keys. The misses must not evict valid entries for long.
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
        // A lookup in progress may have read the row before.
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
        // Retried with the next batch, which may contain a later use.
        used = new Map([...batch, ...used]);
        throw error;
      }
    },
  };
}
