/**
 * Links whose host name has the token: `https://<port>-<token>.<domain>`. Clients add paths to them, which they cannot to a URL
 * with a parameter. A link opens one private endpoint until it expires or is ended. The database has digests only.
 */
import { newLinkToken, tokenDigest, overloaded } from '@releap/contract';
import { queryAll, queryOne, statement, type Database } from '@releap/database';

/** Links of one endpoint that have not expired. */
const LINKS_MAX = 1_000;
const FULL_RETRY_S = 60;

/** $1 digest, $2 endpoint, $3 seconds, $4 most links. Nothing if there are as many. */
const INSERT = statement<{ expires_at: Date }>(
  'preview-link-insert',
  `insert into preview_links (digest, endpoint_id, expires_at)
   select $1::bytea, $2::uuid, now() + $3::integer * interval '1 second'
    where (select count(*) from preview_links where endpoint_id = $2 and expires_at > now()) < $4::integer
   returning expires_at`,
);

/** $1 digest */
const FIND = statement<{ endpoint_id: string; sandbox_id: string; port: number; expires_at: Date }>(
  'preview-link-find',
  `select l.endpoint_id, e.sandbox_id, e.port, l.expires_at
     from preview_links l join endpoints e on e.id = l.endpoint_id
    where l.digest = $1 and l.expires_at > now()`,
);

/** $1 digest, $2 sandbox, $3 port */
const END = statement<{ endpoint_id: string }>(
  'preview-link-end',
  `delete from preview_links l using endpoints e
    where l.digest = $1 and e.id = l.endpoint_id and e.sandbox_id = $2 and e.port = $3
   returning l.endpoint_id`,
);

/** $1 rows */
const PURGE = statement<{ endpoint_id: string }>(
  'preview-link-purge',
  `delete from preview_links where digest in (
     select digest from preview_links where expires_at <= now() order by expires_at limit $1 for update skip locked)
   returning endpoint_id`,
);
const PURGE_ROWS = 1_000;

/** @returns the token. @throws 429 when the endpoint has as many links as it may */
export async function createPreviewLink(
  { pool }: Database,
  endpointId: string,
  seconds: number,
): Promise<string> {
  const token = newLinkToken();
  const row = await queryOne(pool, INSERT, [tokenDigest(token), endpointId, seconds, LINKS_MAX]);
  if (row === undefined)
    throw overloaded(
      `this port has ${LINKS_MAX} signed preview URLs that have not expired, which is the most allowed: expire some, or let them expire`,
      FULL_RETRY_S,
      'limit_reached',
    );
  return token;
}

export interface FoundLink {
  endpointId: string;
  sandboxId: string;
  port: number;
  expiresAt: Date;
}

/** Undefined for a token that is unknown, was ended, or has expired. */
export async function findPreviewLink({ pool }: Database, token: string): Promise<FoundLink | undefined> {
  const row = await queryOne(pool, FIND, [tokenDigest(token)]);
  return (
    row && {
      endpointId: row.endpoint_id,
      sandboxId: row.sandbox_id,
      port: row.port,
      expiresAt: row.expires_at,
    }
  );
}

/** @returns whether that port of the sandbox had it */
export async function endPreviewLink(
  { pool }: Database,
  { sandboxId, port, token }: { sandboxId: string; port: number; token: string },
): Promise<boolean> {
  return (await queryOne(pool, END, [tokenDigest(token), sandboxId, port])) !== undefined;
}

/** Removes the links that have expired. */
export async function purgePreviewLinks({ pool }: Database, signal: AbortSignal): Promise<void> {
  while (!signal.aborted && (await queryAll(pool, PURGE, [PURGE_ROWS])).length === PURGE_ROWS);
}
