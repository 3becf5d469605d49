/** Join tokens that the operator has created: each lets a number of new hosts join, until it expires or is revoked. */
import { randomBytes } from 'node:crypto';
import {
  isUuid,
  JOIN_TOKEN_HOSTS_SHOWN,
  JOIN_TOKEN_LIMITS,
  LIST_CURSORS,
  newUuid,
  notFound,
  quote,
  tokenDigest,
  unauthorized,
  type JoinTokenCreated,
  type JoinTokenList,
  type JoinTokenRecord,
  type JoinTokenRequest,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import { BY_TIME, pagedList, type PageRequest } from '../paged-list.ts';
import { purge } from '../retention/purge.ts';

interface JoinTokenRow {
  id: string;
  name: string | null;
  status: JoinTokenRecord['status'];
  uses: number;
  uses_left: number;
  created_at: Date;
  expires_at: Date;
  revoked_at: Date | null;
  joined: Pick<JoinTokenRecord, 'hosts' | 'host_count'>;
}

const STATUS = `case when revoked_at is not null then 'revoked' when expires_at <= now() then 'expired'
                     when uses_left = 0 then 'used_up' else 'valid' end`;
/** A host has no row, and so no name, until it connects. */
const JOINED = `(select json_build_object('host_count', coalesce(max(total), 0),
                            'hosts', coalesce(json_agg(json_build_object('id', id, 'name', name) order by joined_at), '[]'))
                   from (select c.runner_id as id, h.name, c.created_at as joined_at, count(*) over () as total
                           from runner_credentials c left join host_states h on h.id = c.runner_id
                          where c.join_token_id = join_tokens.id and h.forgotten_at is null
                          order by c.created_at limit ${JOIN_TOKEN_HOSTS_SHOWN}) h)`;
const COLUMNS = `id, name, ${STATUS} as status, uses, uses_left, created_at, expires_at, revoked_at, ${JOINED} as joined`;

/** $1 id, $2 digest, $3 name, $4 uses, $5 seconds */
const CREATE = statement<JoinTokenRow>(
  'join-token-create',
  `insert into join_tokens (id, digest, name, uses, uses_left, expires_at)
   values ($1, $2, $3, $4, $4, now() + $5 * interval '1 second') returning ${COLUMNS}`,
);
const LIST = pagedList<JoinTokenRow>('join-token-list', LIST_CURSORS.joinTokens, {
  columns: COLUMNS,
  from: 'join_tokens',
  where: 'true',
  parameters: 0,
  keys: BY_TIME,
  direction: 'desc',
});
const REVOKE = statement<{ id: string }>(
  'join-token-revoke',
  'update join_tokens set revoked_at = coalesce(revoked_at, now()) where id = $1 returning id',
);
/** $1 digest */
const FIND = statement<{ id: string }>('join-token-find', 'select id from join_tokens where digest = $1');
/** A concurrent use of the last one waits for this one, and finds none left. $1 id */
const USE = statement<{ id: string }>(
  'join-token-use',
  `update join_tokens set uses_left = uses_left - 1
    where id = $1 and uses_left > 0 and expires_at > now() and revoked_at is null returning id`,
);
const WHY_NOT = statement<Pick<JoinTokenRow, 'status' | 'expires_at'>>(
  'join-token-status',
  `select ${STATUS} as status, expires_at from join_tokens where id = $1`,
);

/** Those that have expired, whatever became of them before. */
export const JOIN_TOKEN_PURGE = purge(
  'join-tokens',
  `delete from join_tokens where id in (
       select id from join_tokens where expires_at < now() - $1 * interval '1 day' limit $2 for update skip locked)
     returning id`,
);

const record = ({ created_at, expires_at, revoked_at, joined, ...row }: JoinTokenRow): JoinTokenRecord => ({
  ...row,
  ...joined,
  created_at: created_at.toISOString(),
  expires_at: expires_at.toISOString(),
  revoked_at: revoked_at?.toISOString() ?? null,
});

export async function createJoinToken(
  on: Queryable,
  {
    expires_in_s: seconds = JOIN_TOKEN_LIMITS.expiresS.default,
    uses = JOIN_TOKEN_LIMITS.uses.default,
    name,
  }: JoinTokenRequest,
): Promise<JoinTokenCreated> {
  const token = `rlpj_${randomBytes(32).toString('base64url')}`;
  const row = await queryOne(on, CREATE, [newUuid(), tokenDigest(token), name ?? null, uses, seconds]);
  if (row === undefined) throw new Error('the join token was not written');
  return { ...record(row), token };
}

export async function listJoinTokens(on: Queryable, request: PageRequest): Promise<JoinTokenList> {
  const { rows, next } = await LIST.page(on, [], request);
  return { ...next, join_tokens: rows.map(record) };
}

/** Idempotent. @throws 404 */
export async function revokeJoinToken(on: Queryable, id: string): Promise<void> {
  const lower = id.toLowerCase();
  const revoked = isUuid(lower) ? await queryOne(on, REVOKE, [lower]) : undefined;
  if (revoked === undefined) throw notFound(`join token ${quote(id)} not found`, 'join_token_not_found');
}

/** @returns its id, whether or not it is still accepted; undefined when it is not one of the operator's */
export async function findJoinToken(on: Queryable, token: string): Promise<string | undefined> {
  return (await queryOne(on, FIND, [tokenDigest(token)]))?.id;
}

/** Counts a use, in the transaction that registers the host. @throws 401 with the reason */
export async function useJoinToken(on: Queryable, id: string): Promise<void> {
  if ((await queryOne(on, USE, [id])) !== undefined) return;
  const found = (await queryAll(on, WHY_NOT, [id]))[0];
  throw unauthorized(
    found === undefined
      ? 'missing or invalid join token'
      : `this join token ${reason(found)}: the operator makes another one with rlp host join-token`,
  );
}

function reason({ status, expires_at: at }: Pick<JoinTokenRow, 'status' | 'expires_at'>): string {
  if (status === 'revoked') return 'was revoked';
  return status === 'expired' ? `expired at ${at.toISOString()}` : 'is used up';
}
