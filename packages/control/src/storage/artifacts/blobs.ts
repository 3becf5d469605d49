/** The store with a row for each blob: what modules and runners put, and read. */
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import { BlobError, type Blob, type BlobStore, type PutOptions } from './blob-store.ts';
import { verifyContent } from './verify-content.ts';

/**
 * Waits for the garbage collector where it is about to remove this blob: whatever becomes visible after this statement
 * is not removed. $1 digest, $2 bytes
 */
const TOUCH = statement(
  'blob-touch',
  `insert into blobs (digest, bytes) values ($1, $2)
   on conflict (digest) do update set touched_at = now(), bytes = excluded.bytes`,
);
const STORED = statement('blob-stored', 'update blobs set stored_at = now() where digest = $1');
const FIND = statement<{ bytes: string }>(
  'blob-find',
  'select bytes from blobs where digest = $1 and stored_at is not null',
);

/**
 * Puts blobs into `store`, each with its row in `blobs`. A blob stays as long as a row names it (view `blob_references`),
 * and for a grace period after it was put: write the row that names it within that time.
 */
export function createBlobs(database: Database, store: BlobStore): BlobStore {
  async function put(source: AsyncIterable<Uint8Array>, options: PutOptions): Promise<Blob> {
    const { digest } = options;
    const touch = async (blob: Blob): Promise<void> => {
      await options.onVerified?.(blob);
      await queryAll(database.pool, TOUCH, [blob.digest, blob.bytes]);
    };
    if (digest !== undefined && (await isStored(digest))) {
      // Read all the same: the sender must have the content.
      const blob = await readToEnd(source, { ...options, onVerified: touch });
      // It may have been removed meanwhile, before its row was touched.
      if ((await store.stat(digest)) !== undefined) {
        await queryAll(database.pool, STORED, [digest]);
        return blob;
      }
      throw new BlobError('unavailable', `the blob ${digest} was removed while it was uploaded again`);
    }
    const blob = await store.put(source, { ...options, onVerified: touch });
    await queryAll(database.pool, STORED, [blob.digest]);
    return blob;
  }

  async function isStored(digest: string): Promise<boolean> {
    return (
      (await queryOne(database.pool, FIND, [digest])) !== undefined &&
      (await store.stat(digest)) !== undefined
    );
  }

  return {
    put,
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
