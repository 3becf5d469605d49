import { newToken, newUuid, tokenDigest, tokenPrefix } from '@releap/contract';
import { queryAll, statement, type Database, type Queryable } from '@releap/database';
import { batchStep, type TeardownStep } from '../teardown/step.ts';

export interface MintedKey {
  id: string;
  name: string;
  project_id: string;
  key_prefix: string;
  /** The plaintext, which is returned once and never stored. */
  token: string;
}

/** Generated before the key is inserted. */
export interface NewKey {
  id: string;
  token: string;
}

export function mintedKey(projectId: string, name: string, { id, token }: NewKey): MintedKey {
  return { id, name, project_id: projectId, key_prefix: tokenPrefix(token), token };
}

/** A project has at most one active key of this name. */
export const DEFAULT_KEY_NAME = 'default';

/**
 * Creates an API key. A project has one active key named `default`: a new one revokes the one before.
 * @param on the connection of a transaction, if others may create keys concurrently: the project's row is locked
 * @param options.generated its id and token, for deterministic ones
 * @param options.replace revoke earlier keys of this name, for any name
 */
export async function mintApiKey(
  on: Queryable,
  projectId: string,
  name: string = DEFAULT_KEY_NAME,
  { replace = name === DEFAULT_KEY_NAME, generated }: { replace?: boolean; generated?: NewKey } = {},
): Promise<MintedKey> {
  const key = mintedKey(projectId, name, generated ?? { id: newUuid(), token: newToken('apiKey') });
  if (replace) {
    await on.query('select 1 from projects where id = $1 for no key update', [projectId]);
    await on.query(
      `update api_keys set revoked_at = now() where project_id = $1 and name = $2 and revoked_at is null`,
      [projectId, name],
    );
  }
  await on.query(
    `insert into api_keys (id, project_id, name, token_hash, key_prefix) values ($1, $2, $3, $4, $5)`,
    [key.id, projectId, name, tokenDigest(key.token), key.key_prefix],
  );
  return key;
}

/** Revokes a key, which stops working on all servers within a second. @returns whether it was active */
export async function revokeApiKey(on: Queryable, keyId: string): Promise<boolean> {
  const { rowCount } = await on.query(
    'update api_keys set revoked_at = now() where id = $1 and revoked_at is null',
    [keyId],
  );
  return rowCount === 1;
}

const REVOKE_OF = statement(
  'api-keys-revoke-of',
  'update api_keys set revoked_at = now() where project_id = any($1::uuid[]) and revoked_at is null',
);

/** Revokes all keys of these projects. */
export async function revokeApiKeysOf(on: Queryable, projectIds: readonly string[]): Promise<void> {
  await queryAll(on, REVOKE_OF, [projectIds]);
}

/** Keys that were made while their project was deleted. */
export const apiKeyTeardown = (database: Database): TeardownStep =>
  batchStep(database, {
    name: 'api-keys',
    phase: 'revoke',
    text: `update api_keys set revoked_at = now()
            where id in (select id from api_keys where project_id = $1 and revoked_at is null limit $2) returning 1`,
  });
