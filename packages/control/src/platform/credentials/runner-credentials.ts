/**
 * Credentials of runners. A runner generates its credential and registers its digest under its own id: with a join
 * token if the id is new (that of the deployment, or one that the operator has created), with its present credential, or with the
 * operator's permission for that id. A join token alone never authorizes a known runner id.
 */
import { randomBytes } from 'node:crypto';
import { conflict, newUuid, quote, tokenDigest, unauthorized } from '@releap/contract';
import { queryAll, queryOne, statement, type Database, type Queryable } from '@releap/database';
import type { Logger } from 'pino';
import { findJoinToken, useJoinToken } from './join-tokens.ts';
import { isIn, type TokenSet } from './token-set.ts';

export interface RunnerIdentity {
  runnerId: string;
  credentialId: string;
  /** It is older than `RENEW_AFTER_MS`: the runner should register another. */
  renew: boolean;
}

export interface JoinRequest {
  runnerId: string;
  /** SHA-256 of the credential. */
  digest: Buffer;
  /** What the runner authenticates with: a join token, its present credential, or the operator's permission. */
  token: string | null;
}

export interface RunnerCredentials {
  /** The runner that this credential belongs to; null when it is unknown or revoked. Ends older credentials of the runner. */
  authenticate(token: string | null): Promise<RunnerIdentity | null>;
  /** Registers a credential; idempotent for the same digest. @throws 401, 409 */
  join(request: JoinRequest): Promise<void>;
  /**
   * Revokes all credentials of a runner and returns a token with which it can join once.
   * @returns the token and when it expires
   */
  permitJoin(runnerId: string): Promise<{ token: string; expiresAt: Date }>;
  /** Revokes all credentials and permissions of a runner; its connections end with the next heartbeat. */
  revoke(runnerId: string): Promise<void>;
}

export interface RunnerCredentialsOptions {
  database: Database;
  /** Ends the connection of the host, in the transaction that revokes its credential. */
  endConnection: (on: Queryable, runnerId: string) => Promise<void>;
  /** Of the deployment. */
  joinTokens: TokenSet;
  log: Logger;
}

/** A runner renews its credential at its first start after this time. */
const RENEW_AFTER_MS = 30 * 24 * 3_600_000;
const PERMISSION_MS = 3_600_000;

/** $1 digest, $2 milliseconds. The first use of a credential ends the runner's earlier ones; the last use is written once a minute. */
const AUTHENTICATE = statement<{ id: string; runner_id: string; renew: boolean }>(
  'runner-credential-use',
  `with found as (
     select id, runner_id, created_at, last_used_at from runner_credentials where digest = $1 and revoked_at is null
   ), used as (
     update runner_credentials c set last_used_at = now() from found f
      where c.id = f.id and (f.last_used_at is null or f.last_used_at < now() - interval '1 minute')
     returning c.id, c.runner_id, c.created_at
   ), ended as (
     update runner_credentials o set revoked_at = now() from used u
      where o.runner_id = u.runner_id and o.id <> u.id and o.created_at < u.created_at and o.revoked_at is null
   )
   select id, runner_id, created_at < now() - $2 * interval '1 millisecond' as renew from found`,
);
const BY_DIGEST = statement<{ runner_id: string; revoked: boolean }>(
  'runner-credential-by-digest',
  'select runner_id, revoked_at is not null as revoked from runner_credentials where digest = $1',
);
/** What is known of a runner id. $1 runner id */
const KNOWN = statement<{ credentials: boolean; row: boolean; forgotten: boolean }>(
  'runner-known',
  `select exists (select 1 from runner_credentials where runner_id = $1) as credentials,
          exists (select 1 from host_states where id = $1) as row,
          exists (select 1 from host_states where id = $1 and forgotten_at is not null) as forgotten`,
);
/** Serializes the joins of a runner. $1 runner id */
const LOCK = statement(
  'runner-join-lock',
  `select pg_advisory_xact_lock(hashtextextended('runner-join ' || $1, 0))`,
);
/** $4 the operator's token of a new host, or null */
const INSERT = statement(
  'runner-credential-insert',
  `insert into runner_credentials (id, runner_id, digest, join_token_id, created_at)
   values ($1, $2, $3, $4, clock_timestamp())`,
);
const REVOKE = statement(
  'runner-credentials-revoke',
  'update runner_credentials set revoked_at = now() where runner_id = $1 and revoked_at is null',
);
const DROP_PERMISSIONS = statement(
  'runner-join-grants-drop',
  'delete from runner_join_grants where runner_id = $1',
);
/** $1 digest, $2 runner id, $3 milliseconds */
const PERMIT = statement<{ expires_at: Date }>(
  'runner-join-permit',
  `insert into runner_join_grants (digest, runner_id, expires_at)
   values ($1, $2, now() + $3 * interval '1 millisecond') returning expires_at`,
);
const USE_PERMISSION = statement<{ runner_id: string }>(
  'runner-join-use',
  `update runner_join_grants set used_at = now()
    where digest = $1 and runner_id = $2 and used_at is null and expires_at > now() returning runner_id`,
);

export function createRunnerCredentials(options: RunnerCredentialsOptions): RunnerCredentials {
  const { database, endConnection, joinTokens, log } = options;

  const authenticate = async (token: string | null): Promise<RunnerIdentity | null> => {
    if (token === null) return null;
    const row = await queryOne(database.pool, AUTHENTICATE, [tokenDigest(token), RENEW_AFTER_MS]);
    return row === undefined ? null : { runnerId: row.runner_id, credentialId: row.id, renew: row.renew };
  };

  return {
    authenticate,

    async join({ runnerId, digest, token }) {
      const refused = unauthorized('missing or invalid join token');
      if (token === null) throw refused;
      const own = await queryOne(database.pool, BY_DIGEST, [tokenDigest(token)]);
      const joinTokenId = await database.transaction(async (client) => {
        await queryAll(client, LOCK, [runnerId]);
        const registered = await queryOne(client, BY_DIGEST, [digest]);
        const known = await queryOne(client, KNOWN, [runnerId]);
        // The answer to an earlier request was lost.
        const repeats = registered?.runner_id === runnerId && !registered.revoked;
        const created = await findJoinToken(client, token);
        if (own !== undefined) {
          // The present credential: a renewal.
          if (own.revoked || own.runner_id !== runnerId) throw refused;
        } else if (created !== undefined || isIn(joinTokens, token)) {
          // A refusal rolls the transaction back, and with it this use.
          if (created !== undefined && !repeats) await useJoinToken(client, created);
          if (known?.forgotten === true)
            throw conflict(
              `the operator has forgotten runner ${quote(runnerId)}: this machine joins under a new id, with another RELEAP_HOME`,
            );
          if ((known?.credentials === true || known?.row === true) && !repeats) {
            throw conflict(
              `runner ${quote(runnerId)} is already registered: it joins with its own credential, or with a token from ` +
                `rlp host permit-join ${runnerId}`,
              'name_exists',
            );
          }
        } else if ((await queryOne(client, USE_PERMISSION, [tokenDigest(token), runnerId])) === undefined) {
          throw refused;
        }
        if (registered !== undefined) {
          if (repeats) return created;
          throw conflict('this credential was registered before: generate another one', 'name_exists');
        }
        await queryAll(client, INSERT, [newUuid(), runnerId, digest, created ?? null]);
        return created;
      });
      log.info(
        { runner: runnerId, ...(joinTokenId !== undefined && { join_token_id: joinTokenId }) },
        'a runner has joined',
      );
    },

    async permitJoin(runnerId) {
      const token = randomBytes(32).toString('base64url');
      const row = await database.transaction(async (client) => {
        await queryAll(client, LOCK, [runnerId]);
        await queryAll(client, REVOKE, [runnerId]);
        await endConnection(client, runnerId);
        await queryAll(client, DROP_PERMISSIONS, [runnerId]);
        return queryOne(client, PERMIT, [tokenDigest(token), runnerId, PERMISSION_MS]);
      });
      if (row === undefined) throw new Error('the permission to join was not written');
      return { token, expiresAt: row.expires_at };
    },

    async revoke(runnerId) {
      await database.transaction(async (client) => {
        await queryAll(client, LOCK, [runnerId]);
        await queryAll(client, REVOKE, [runnerId]);
        await endConnection(client, runnerId);
        await queryAll(client, DROP_PERMISSIONS, [runnerId]);
      });
    },
  };
}
