import { newUuid, tokenDigest, tokenKind } from '@releap/contract';
import { LOCKS, queryOne, RELEAP_LOCK_SPACE, statement, type Database } from '@releap/database';
import { mintApiKey } from './api-keys.ts';

export interface BootstrapOptions {
  /** The key of an earlier call, if the caller still has it. While it is active, no other key is created. */
  existingApiKey?: string | undefined;
  /**
   * Name of the caller's key. A new key revokes the previous one of the same name, so servers on one database need
   * different names, or each would revoke the key of the others.
   */
  keyName: string;
}

export interface Bootstrap {
  orgId: string;
  projectId: string;
  /** Plaintext: the existing key, or a new one, which is returned only here. */
  apiKey: string;
  /** Whether this call created the key, and revoked the previous one of the same name. */
  created: boolean;
}

const NAME = 'default';

/** $1 name of the project */
const FIND = statement<{ org_id: string; project_id: string }>(
  'bootstrap-find',
  `select o.id as org_id, p.id as project_id
     from organizations o join projects p on p.org_id = o.id and p.name = $1 and p.deleted_at is null
    where o.bootstrap`,
);

/** Creates the default organization, its default project and an API key, if they are absent. Concurrent calls are safe. */
export async function ensureBootstrap(database: Database, options: BootstrapOptions): Promise<Bootstrap> {
  return database.transaction(async (client) => {
    await client.query('select pg_advisory_xact_lock($1, $2)', [RELEAP_LOCK_SPACE, LOCKS.bootstrap]);
    const found = await queryOne(client, FIND, [NAME]);
    let orgId = found?.org_id;
    let projectId = found?.project_id;
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
    const key = await mintApiKey(client, projectId, options.keyName, { replace: true });
    return { orgId, projectId, apiKey: key.token, created: true };
  });
}
