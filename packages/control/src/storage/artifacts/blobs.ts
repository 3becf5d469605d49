/** A store with a row for each blob: what modules and runners put, and read. */
import { queryAll, queryOne, type Database } from '@releap/database';
import { BlobError, type Blob, type BlobStore, type PutOptions } from './blob-store.ts';
import { blobRows, DEPLOYMENT_STORE } from './blob-rows.ts';
import { verifyContent } from './verify-content.ts';

export interface Blobs extends BlobStore {
  /** Whether the blob is in the store; it is kept for now, as if it had been put. */
  keep(blob: Blob): Promise<boolean>;
}

/**
 * Puts blobs into `store`, each with its row. A blob stays as long as a row names it (views `blob_references` and
 * `store_blob_references`), and for a grace period after it was put: write the row that names it within that time.
 */
export function createBlobs(database: Database, store: BlobStore, storeId = DEPLOYMENT_STORE): Blobs {
  const rows = blobRows(storeId);

  async function put(source: AsyncIterable<Uint8Array>, options: PutOptions): Promise<Blob> {
    const { digest } = options;
    const touch = async (blob: Blob): Promise<void> => {
      await options.onVerified?.(blob);
      await queryAll(database.pool, rows.touch, rows.values(blob.digest, blob.bytes));
    };
    if (digest !== undefined && (await isStored(digest))) {
      // Read all the same: the sender must have the content.
      const blob = await readToEnd(source, { ...options, onVerified: touch });
      // It may have been removed meanwhile, before its row was touched.
      if ((await store.stat(digest)) !== undefined) {
        await queryAll(database.pool, rows.stored, rows.values(digest));
        return blob;
      }
      throw new BlobError('unavailable', `the blob ${digest} was removed while it was uploaded again`);
    }
    const blob = await store.put(source, { ...options, onVerified: touch });
    await queryAll(database.pool, rows.stored, rows.values(blob.digest));
    return blob;
  }

  async function isStored(digest: string): Promise<boolean> {
    return (
      (await queryOne(database.pool, rows.find, rows.values(digest))) !== undefined &&
      (await store.stat(digest)) !== undefined
    );
  }

  return {
    put,
    async keep({ digest, bytes }) {
      if ((await queryOne(database.pool, rows.find, rows.values(digest))) === undefined) return false;
      await queryAll(database.pool, rows.touch, rows.values(digest, bytes));
      return (await store.stat(digest))?.bytes === bytes;
    },
    get: (digest, signal) => store.get(digest, signal),
    stat: (digest) => store.stat(digest),
    delete: (digest) => store.delete(digest),
    list: () => store.list(),
    removeUnfinished: (before) => store.removeUnfinished(before),
  };
}

async function readToEnd(source: AsyncIterable<Uint8Array>, options: PutOptions): Promise<Blob> {
  let result: Blob | undefined;
  const content = verifyContent(source, options, (blob) => (result = blob));
  for await (const _chunk of content);
  if (result === undefined) throw new Error('the content has no end');
  return result;
}
