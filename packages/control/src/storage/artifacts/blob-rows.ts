/** The SQL of the rows of blobs: `blobs` of the store of the deployment, and `store_blobs` of those of regions. */
import { statement, type QueryResultRow, type Statement } from '@releap/database';

/** The id of the store of the deployment. */
export const DEPLOYMENT_STORE = '00000000-0000-0000-0000-000000000000';

export interface BlobRows {
  /**
   * Waits for the garbage collector where it is about to remove this blob: whatever becomes visible after this statement
   * is not removed. Digest, bytes
   */
  touch: Statement<QueryResultRow>;
  /** Digest */
  stored: Statement<QueryResultRow>;
  /** Digest */
  find: Statement<{ bytes: string }>;
  /** Blobs that no row names. Grace period in milliseconds, rows, and the last row of the page before, or two nulls */
  unnamed: Statement<{ digest: string; touched_at: string }>;
  /** Locked: an upload of the same content waits, and then stores it again. Digest, grace period */
  stillUnnamed: Statement<{ digest: string }>;
  /** Digest */
  remove: Statement<QueryResultRow>;
  /** Digests, bytes */
  adopt: Statement<{ digest: string }>;
  /** Of these parts: those in the store. Digests, bytes, location, project */
  proven: Statement<{ digest: string }>;
  /** Digests, location, project */
  there: Statement<{ digest: string }>;
  /** The parameters of one of these. */
  values: (...values: readonly unknown[]) => unknown[];
}

/** The content is the host's or the project's, over `b`. @param location, project as `$3` */
const isProven = (location: string, project: string): string =>
  `(exists (select 1 from artifact_uploads u where u.location_id = ${location} and u.digest = b.digest)
        or exists (select 1 from artifact_parts p join artifacts a on a.id = p.artifact_id
                    where p.digest = b.digest and a.project_id = ${project}))`;

function make(ofRegion: boolean): Omit<BlobRows, 'values'> {
  const table = ofRegion ? 'store_blobs' : 'blobs';
  const name = (what: string): string => (ofRegion ? `region-${what}` : what);
  /** The parameter of the store comes last. */
  const column = ofRegion ? ', store_id' : '';
  const value = (n: number): string => (ofRegion ? `, $${n}::uuid` : '');
  const here = (n: number): string => (ofRegion ? ` and b.store_id = $${n}` : '');
  const conflict = ofRegion ? '(store_id, digest)' : '(digest)';
  const references = (n: number): string =>
    ofRegion
      ? `select 1 from store_blob_references r where r.digest = b.digest and r.store_id = $${n}`
      : 'select 1 from blob_references r where r.digest = b.digest';
  return {
    touch: statement(
      name('blob-touch'),
      `insert into ${table} (digest, bytes${column}) values ($1, $2${value(3)})
   on conflict ${conflict} do update set touched_at = now(), bytes = excluded.bytes`,
    ),
    stored: statement(
      name('blob-stored'),
      `update ${table} b set stored_at = now() where b.digest = $1${here(2)}`,
    ),
    find: statement(
      name('blob-find'),
      `select b.bytes from ${table} b where b.digest = $1 and b.stored_at is not null${here(2)}`,
    ),
    unnamed: statement(
      name('blobs-unnamed'),
      `select b.digest, b.touched_at::text from ${table} b where b.touched_at < now() - $1 * interval '1 millisecond'
      and ($3::timestamptz is null or (b.touched_at, b.digest) > ($3::timestamptz, $4::text))${here(5)}
      and not exists (${references(5)}) order by b.touched_at, b.digest limit $2`,
    ),
    stillUnnamed: statement(
      name('blob-still-unnamed'),
      `select b.digest from ${table} b where b.digest = $1 and b.touched_at < now() - $2 * interval '1 millisecond'${here(3)}
      and not exists (${references(3)}) for update`,
    ),
    remove: statement(name('blob-remove'), `delete from ${table} b where b.digest = $1${here(2)}`),
    adopt: statement(
      name('blobs-adopt'),
      `insert into ${table} (digest, bytes, stored_at${column})
   select t.digest, t.bytes, now()${value(3)} from unnest($1::text[], $2::bigint[]) as t(digest, bytes)
   on conflict ${conflict} do nothing returning digest`,
    ),
    // Their blobs cannot be removed before the end of the transaction.
    proven: statement(
      name('artifact-proven-parts'),
      `select b.digest from ${table} b join unnest($1::text[], $2::bigint[]) as t(digest, bytes) on t.digest = b.digest and t.bytes = b.bytes
    where b.stored_at is not null${here(5)} and ${isProven('$3', '$4')} for key share of b`,
    ),
    there: statement(
      name('artifact-blobs-there'),
      `update ${table} b set touched_at = now() where b.digest = any($1::text[]) and b.stored_at is not null${here(4)}
      and ${isProven('$2', '$3')} returning b.digest`,
    ),
  };
}

const OF_DEPLOYMENT: BlobRows = { ...make(false), values: (...values) => [...values] };
const OF_REGION = make(true);

export function blobRows(storeId: string): BlobRows {
  if (storeId === DEPLOYMENT_STORE) return OF_DEPLOYMENT;
  return { ...OF_REGION, values: (...values) => [...values, storeId] };
}
