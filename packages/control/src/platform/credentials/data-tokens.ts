/**
 * Tokens for the data server of one runner, with which gateways and control servers access a sandbox there. A token is
 * bound to one runner and one sandbox and expires after a minute. Each runner has its own key, derived from the
 * deployment's key and the runner's credential, so that no runner's key is valid for another, and a new credential
 * replaces the key.
 */
import { hkdfSync } from 'node:crypto';
import { DATA_TOKEN_TTL_MS, unavailable } from '@releap/contract';
import { queryOne, statement, type Database } from '@releap/database';
import { SignJWT } from 'jose';
import type { ServiceKeys } from './service-keys.ts';

export interface DataToken {
  token: string;
  /** How long it is valid from now on, in milliseconds. */
  ttlMs: number;
}

export interface DataTokens {
  /** Authorizes access to one sandbox on one runner. @throws 503 when the runner has no credential */
  issue(runnerId: string, sandboxUuid: string): Promise<DataToken>;
  /** The key with which the runner verifies tokens; `credentialId` is its name (`kid`). */
  keyOf(runnerId: string, credentialId: string): Promise<Buffer>;
}

/** The credential that the runner uses: the newest one it has connected with. $1 runner id */
const IN_USE = statement<{ id: string }>(
  'runner-credential-in-use',
  `select id from runner_credentials where runner_id = $1 and revoked_at is null
    order by last_used_at desc nulls last, created_at desc limit 1`,
);

export function createDataTokens({
  database,
  serviceKeys,
}: {
  database: Database;
  serviceKeys: ServiceKeys;
}): DataTokens {
  async function keyOf(runnerId: string, credentialId: string): Promise<Buffer> {
    const master = await serviceKeys.get('data-tokens');
    const info = `releap data tokens of runner ${runnerId}, credential ${credentialId}`;
    return Buffer.from(hkdfSync('sha256', master, '', info, 32));
  }
  return {
    keyOf,
    async issue(runnerId, sandboxUuid) {
      const credential = await queryOne(database.pool, IN_USE, [runnerId]);
      if (credential === undefined)
        throw unavailable('the host of this sandbox has not joined this installation: try again later');
      const token = await new SignJWT()
        .setProtectedHeader({ alg: 'HS256', kid: credential.id })
        .setAudience(runnerId)
        .setSubject(sandboxUuid)
        .setIssuedAt()
        .setExpirationTime(`${DATA_TOKEN_TTL_MS / 1000}s`)
        .sign(await keyOf(runnerId, credential.id));
      return { token, ttlMs: DATA_TOKEN_TTL_MS };
    },
  };
}
