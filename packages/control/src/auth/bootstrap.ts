import { newUuid, tokenDigest, tokenKind } from '@releap/contract';
import { LOCKS, RELEAP_LOCK_SPACE, type Database } from '@releap/database';
import { DEFAULT_KEY_NAME, mintApiKey } from './api-keys.ts';

export interface BootstrapOptions {
  /**
   * The API key that an earlier call gave, if the caller still has it. When it still works none is made, and so a
   * crash between this call and the caller's note of its answer is mended by calling again.
   */
  existingApiKey?: string | undefined;
  /**
   * Name of the key that is made. One of the same name before it is revoked: two installations on one database must
   * not have the same, or each takes the other's key away. `default` when absent.
   */
  keyName?: string;
}

export interface Bootstrap {
  orgId: string;
  projectId: string;
  /** Plaintext: the existing key, or a new one, which is returned only here. */
  apiKey: string;
  /** Whether the key was made by this call. The key of the same name before it is revoked then. */
  created: boolean;
}

const NAME = 'default';

/** Makes sure that there is a default organization with a default project and a working API key. Safe to repeat and to race. */
export async function ensureBootstrap(
  database: Database,
  options: BootstrapOptions = {},
): Promise<Bootstrap> {
  return database.transaction(async (client) => {
    await client.query('select pg_advisory_xact_lock($1, $2)', [RELEAP_LOCK_SPACE, LOCKS.bootstrap]);
    const found = await client.query<{ org_id: string; project_id: string }>(
      `select o.id as org_id, p.id as project_id
         from organizations o join projects p on p.org_id = o.id and p.name = $1 and p.deleted_at is null
        where o.bootstrap`,
      [NAME],
    );
    let orgId = found.rows[0]?.org_id;
    let projectId = found.rows[0]?.project_id;
    if (orgId === undefined || projectId === undefined) {
      orgId = newUuid();
      projectId = newUuid();
      await client.query('insert into organizations (id, name, bootstrap) values ($1, $2, true)', [
        orgId,
        NAME,
      ]);
      await client.query('insert into projects (id, org_id, name) values ($1, $2, $3)', [
        projectId,
        orgId,
        NAME,
      ]);
    }
    const existing = options.existingApiKey;
    if (existing !== undefined && tokenKind(existing) === 'apiKey') {
      const { rowCount } = await client.query(
        'select 1 from api_keys where token_hash = $1 and project_id = $2 and revoked_at is null',
        [tokenDigest(existing), projectId],
      );
      if (rowCount === 1) return { orgId, projectId, apiKey: existing, created: false };
    }
    const key = await mintApiKey(client, projectId, options.keyName ?? DEFAULT_KEY_NAME, { replace: true });
    return { orgId, projectId, apiKey: key.token, created: true };
  });
}
