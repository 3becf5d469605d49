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

/** Drawn before the key is made. */
export interface DrawnKey {
  id: string;
  token: string;
}

export function mintedKey(projectId: string, name: string, { id, token }: DrawnKey): MintedKey {
  return { id, name, project_id: projectId, key_prefix: tokenPrefix(token), token };
}

/** The name of which a project has one key at a time. */
export const DEFAULT_KEY_NAME = 'default';

/**
 * Makes an API key. A project has one key named `default` at a time: a new one revokes the one before.
 * @param on the connection of a transaction, if others may mint at the same time: the project's row is locked
 * @param options.drawn its id and token, where a repeated request must make the same
 * @param options.replace revoke the keys of this name before, whatever the name is
 */
export async function mintApiKey(
  on: Queryable,
  projectId: string,
  name: string = DEFAULT_KEY_NAME,
  { replace = name === DEFAULT_KEY_NAME, drawn }: { replace?: boolean; drawn?: DrawnKey } = {},
): Promise<MintedKey> {
  const key = mintedKey(projectId, name, drawn ?? { id: newUuid(), token: newToken('apiKey') });
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

/** Revokes a key. It stops working everywhere within a second. Says whether it worked until now. */
export async function revokeApiKey(on: Queryable, keyId: string): Promise<boolean> {
  const { rowCount } = await on.query(
    'update api_keys set revoked_at = now() where id = $1 and revoked_at is null',
    [keyId],
  );
  return rowCount === 1;
}
