/** Removes blobs that no row names. */
import { queryAll, queryOne, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { blobRows, DEPLOYMENT_STORE, type BlobRows } from './blob-rows.ts';
import type { BlobStore } from './blob-store.ts';

const BATCH = 100;

export interface BlobGarbageOptions {
  database: Database;
  store: BlobStore;
  /** That of the deployment when absent. */
  storeId?: string;
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
  { database, store, storeId = DEPLOYMENT_STORE, graceMs, log }: BlobGarbageOptions,
  signal: AbortSignal,
): Promise<number> {
  const rows = blobRows(storeId);
  await adoptUnknown({ database, store, rows, log }, signal);
  let removed = 0;
  let failed = 0;
  let firstFailure: unknown;
  let last: { digest: string; touched_at: string } | undefined;
  do {
    const unnamed = await queryAll(
      database.pool,
      rows.unnamed,
      rows.values(graceMs, BATCH, last?.touched_at ?? null, last?.digest ?? null),
    );
    for (const { digest } of unnamed) {
      signal.throwIfAborted();
      try {
        if (await removeUnnamed({ database, store, rows, graceMs }, digest)) removed += 1;
      } catch (error) {
        failed += 1;
        firstFailure ??= error;
        log.warn({ err: error, digest }, 'a blob could not be removed; the next run tries again');
      }
    }
    last = unnamed.length === BATCH ? unnamed.at(-1) : undefined;
  } while (last !== undefined);
  const unfinished = await store.removeUnfinished(new Date(Date.now() - graceMs));
  if (removed + unfinished > 0)
    log.info({ store: storeId, blobs: removed, uploads: unfinished }, 'tidied up a store');
  if (failed > 0) throw new Error(`${failed} blobs could not be removed`, { cause: firstFailure });
  return removed;
}

interface Collected {
  database: Database;
  store: BlobStore;
  rows: BlobRows;
}

async function removeUnnamed(
  { database, store, rows, graceMs }: Collected & { graceMs: number },
  digest: string,
): Promise<boolean> {
  return await database.transaction(async (client) => {
    if ((await queryOne(client, rows.stillUnnamed, rows.values(digest, graceMs))) === undefined) return false;
    // The blob first: an interruption in between leaves a row, and the next run repeats both.
    await store.delete(digest);
    await queryAll(client, rows.remove, rows.values(digest));
    return true;
  });
}

async function adoptUnknown(
  { database, store, rows, log }: Collected & { log: Logger },
  signal: AbortSignal,
): Promise<void> {
  let page: { digest: string; bytes: number }[] = [];
  const adopt = async (): Promise<void> => {
    const values = rows.values(
      page.map(({ digest }) => digest),
      page.map(({ bytes }) => bytes),
    );
    const adopted = await queryAll(database.pool, rows.adopt, values);
    if (adopted.length > 0) log.warn({ blobs: adopted.length }, 'found blobs in the store that no row knew');
    page = [];
  };
  for await (const { digest, bytes } of store.list()) {
    signal.throwIfAborted();
    page.push({ digest, bytes });
    if (page.length >= 1_000) await adopt();
  }
  if (page.length > 0) await adopt();
}
