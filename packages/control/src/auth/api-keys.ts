import { newToken, newUuid, tokenDigest, tokenPrefix } from '@releap/contract';
import type { Queryable } from '@releap/database';

export interface MintedKey {
  id: string;
  name: string;
  project_id: string;
  key_prefix: string;
  /** The plaintext. It is stored nowhere and told once. */
  token: string;
}

/** Makes an API key. A project has one key named `default` at a time: a new one revokes the one before. */
export async function mintApiKey(on: Queryable, projectId: string, name = 'default'): Promise<MintedKey> {
  const token = newToken('apiKey');
  const key: MintedKey = {
    id: newUuid(),
    name,
    project_id: projectId,
    key_prefix: tokenPrefix(token),
    token,
  };
  if (name === 'default') {
    await on.query(
      `update api_keys set revoked_at = now() where project_id = $1 and name = $2 and revoked_at is null`,
      [projectId, name],
    );
  }
  await on.query(
    `insert into api_keys (id, project_id, name, token_hash, key_prefix) values ($1, $2, $3, $4, $5)`,
    [key.id, projectId, name, tokenDigest(token), key.key_prefix],
  );
  return key;
}

/** Revokes a key. It stops working everywhere within a second. */
export async function revokeApiKey(on: Queryable, keyId: string): Promise<void> {
  await on.query('update api_keys set revoked_at = coalesce(revoked_at, now()) where id = $1', [keyId]);
}
