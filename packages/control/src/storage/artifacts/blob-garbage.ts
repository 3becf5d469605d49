/** Removes blobs that no row names. */
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { BlobStore } from './blob-store.ts';

/** $1 grace period in milliseconds, $2 rows, $3 and $4 the last row of the page before, or null */
const UNNAMED = statement<{ digest: string; touched_at: string }>(
  'blobs-unnamed',
  `select digest, touched_at::text from blobs b where touched_at < now() - $1 * interval '1 millisecond'
      and ($3::timestamptz is null or (touched_at, digest) > ($3::timestamptz, $4::text))
      and not exists (select 1 from blob_references r where r.digest = b.digest) order by touched_at, digest limit $2`,
);
/** Locked: an upload of the same content waits, and then stores it again. $1 digest, $2 grace period */
const STILL_UNNAMED = statement<{ digest: string }>(
  'blob-still-unnamed',
  `select digest from blobs b where digest = $1 and touched_at < now() - $2 * interval '1 millisecond'
      and not exists (select 1 from blob_references r where r.digest = b.digest) for update`,
);
const REMOVE = statement('blob-remove', 'delete from blobs where digest = $1');
/** $1 digests, $2 bytes */
const ADOPT = statement<{ digest: string }>(
  'blobs-adopt',
  `insert into blobs (digest, bytes, stored_at) select t.digest, t.bytes, now() from unnest($1::text[], $2::bigint[]) as t(digest, bytes)
   on conflict (digest) do nothing returning digest`,
);

const BATCH = 100;

export interface BlobGarbageOptions {
  database: Database;
  store: BlobStore;
  /** How long a blob stays without a row that names it, in milliseconds. */
  graceMs: number;
  log: Logger;
}

/**
 * Removes blobs without a reference whose grace period is over, and what interrupted uploads have left. A blob in the
 * store without a row (the database was restored from a backup) gets one first, and so a grace period. A blob that cannot be
 * removed keeps no other from being removed; the next run tries it again.
 * @returns how many blobs were removed
 * @throws when one could not be removed, after trying all
 */
export async function collectBlobGarbage(
  { database, store, graceMs, log }: BlobGarbageOptions,
  signal: AbortSignal,
): Promise<number> {
  await adoptUnknown(database, store, signal, log);
  let removed = 0;
  let failed = 0;
  let firstFailure: unknown;
  let last: { digest: string; touched_at: string } | undefined;
  do {
    const unnamed = await queryAll(database.pool, UNNAMED, [
      graceMs,
      BATCH,
      last?.touched_at ?? null,
      last?.digest ?? null,
    ]);
    for (const { digest } of unnamed) {
      signal.throwIfAborted();
      try {
        if (await removeUnnamed({ database, store, graceMs }, digest)) removed += 1;
      } catch (error) {
        failed += 1;
        firstFailure ??= error;
        log.warn({ err: error, digest }, 'a blob could not be removed; the next run tries again');
      }
    }
    last = unnamed.length === BATCH ? unnamed.at(-1) : undefined;
  } while (last !== undefined);
  const unfinished = await store.removeUnfinished(new Date(Date.now() - graceMs));
  if (removed + unfinished > 0) log.info({ blobs: removed, uploads: unfinished }, 'tidied up the store');
  if (failed > 0) throw new Error(`${failed} blobs could not be removed`, { cause: firstFailure });
  return removed;
}

async function removeUnnamed(
  { database, store, graceMs }: Pick<BlobGarbageOptions, 'database' | 'store' | 'graceMs'>,
  digest: string,
): Promise<boolean> {
  return await database.transaction(async (client) => {
    if ((await queryOne(client, STILL_UNNAMED, [digest, graceMs])) === undefined) return false;
    // The blob first: an interruption in between leaves a row, and the next run repeats both.
    await store.delete(digest);
    await queryAll(client, REMOVE, [digest]);
    return true;
  });
}

async function adoptUnknown(
  database: Database,
  store: BlobStore,
  signal: AbortSignal,
  log: Logger,
): Promise<void> {
  let page: { digest: string; bytes: number }[] = [];
  const adopt = async (): Promise<void> => {
    const rows = await queryAll(database.pool, ADOPT, [
      page.map(({ digest }) => digest),
      page.map(({ bytes }) => bytes),
    ]);
    if (rows.length > 0) log.warn({ blobs: rows.length }, 'found blobs in the store that no row knew');
    page = [];
  };
  for await (const { digest, bytes } of store.list()) {
    signal.throwIfAborted();
    page.push({ digest, bytes });
    if (page.length >= 1_000) await adopt();
  }
  if (page.length > 0) await adopt();
}
