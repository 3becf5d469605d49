/** The stores of a deployment: its own, and those of regions, which are opened when they are needed. */
import { createHash, randomUUID } from 'node:crypto';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import type { Encryption, Owner } from '../../platform/encryption/encryption.ts';
import { BlobError, type BlobStore } from './blob-store.ts';
import { DEPLOYMENT_STORE } from './blob-rows.ts';
import { createBlobs, type Blobs } from './blobs.ts';
import { openStore, type StoreOptions } from './open-store.ts';

export interface OpenStore {
  id: string;
  /** With rows for its blobs. */
  blobs: Blobs;
  /** Without. */
  bare: BlobStore;
}

/** Where the bucket of a region is. */
export interface StoreLocation {
  bucket: string;
  prefix: string;
  endpoint: string | null;
  s3_region: string;
}

export interface StoreCredentials {
  access_key_id: string;
  secret_access_key: string;
}

export interface Stores {
  /** Opens one. @throws BlobError when there is no such store, or its credentials cannot be decrypted */
  open(id: string): Promise<OpenStore>;
  /** Where a host stores artifacts. */
  ofRunner(runnerId: string): Promise<OpenStore>;
  /** Where a host reads this blob: from the store of its region, else from that of the deployment. */
  holding(runnerId: string, digest: string): Promise<OpenStore>;
  /** Ids of all of them, also of those that no region uses any more. */
  ids(): Promise<string[]>;
  /** @throws BlobError when nothing can be written there and read again */
  probe(location: StoreLocation, credentials: StoreCredentials): Promise<void>;
  close(): void;
}

interface Row extends StoreLocation {
  id: string;
  key_id: string;
  envelope: Buffer;
  updated_at: string;
}

export const storeOwner = (id: string): Owner => ({ kind: 'store-credentials', projectId: '', name: id });

/** $1 store */
const STORE = statement<Row>(
  'store-by-id',
  `select id, bucket, prefix, endpoint, s3_region, key_id, envelope, updated_at::text from stores where id = $1 and bucket is not null`,
);
/** $1 runner */
const OF_RUNNER = statement<{ id: string }>(
  'store-of-runner',
  'select store_of_region(region) as id from runners where id = $1',
);
/** $1 runner, $2 digest */
const HOLDING = statement<{ id: string }>(
  'store-holding-blob',
  `select s.id from (select store_of_region(region) as id from runners where id = $1 offset 0) s
     join store_blobs b on b.store_id = s.id and b.digest = $2 and b.stored_at is not null`,
);
const IDS = statement<{ id: string }>('store-ids', 'select id from stores order by id');

/** Its requests may take this long together. */
const PROBE_MS = 20_000;

export interface StoresOptions {
  database: Database;
  encryption: Encryption;
  deploymentId: string;
  /** The store of the deployment. */
  own: BlobStore;
}

export function createStores({ database, encryption, deploymentId, own }: StoresOptions): Stores {
  const { pool } = database;
  const deployment: OpenStore = { id: DEPLOYMENT_STORE, blobs: createBlobs(database, own), bare: own };
  const opened = new Map<string, { version: string; store: Promise<OpenStore> }>();
  const closing: (() => void)[] = [];

  /** Each has a folder of its own in its bucket, so that two that share one do not remove each other's blobs. */
  const bareStore = async (
    id: string,
    { bucket, prefix, endpoint, s3_region: region }: StoreLocation,
    { access_key_id: accessKeyId, secret_access_key: secretAccessKey }: StoreCredentials,
  ): Promise<BlobStore & { close?(): void }> => {
    const credentials = { accessKeyId, secretAccessKey };
    const options: StoreOptions = {
      type: 's3',
      bucket,
      prefix,
      endpoint: endpoint ?? undefined,
      region,
      credentials,
      // Used only for content without a stated digest, of which these stores get none.
      spoolFolder: join(tmpdir(), 'releap-spool'),
    };
    return await openStore(options, `${deploymentId}/regions/${id}`);
  };

  async function openRow({ key_id: keyId, envelope, ...row }: Row): Promise<OpenStore> {
    const value = await encryption
      .decrypt({ keyId, envelope }, storeOwner(row.id))
      .catch((cause: unknown) => {
        throw new BlobError('unavailable', 'the credentials of a store cannot be decrypted', { cause });
      });
    const bare = await bareStore(row.id, row, JSON.parse(value) as StoreCredentials);
    closing.push(() => bare.close?.());
    return { id: row.id, blobs: createBlobs(database, bare, row.id), bare };
  }

  async function open(id: string): Promise<OpenStore> {
    if (id === DEPLOYMENT_STORE) return deployment;
    const row = await queryOne(pool, STORE, [id]);
    if (row === undefined) throw new BlobError('unavailable', 'the store was removed');
    const known = opened.get(id);
    if (known?.version === row.updated_at) return await known.store;
    const store = openRow(row);
    opened.set(id, { version: row.updated_at, store });
    store.catch(() => opened.delete(id));
    return await store;
  }

  return {
    open,
    ofRunner: async (runnerId) => open((await queryOne(pool, OF_RUNNER, [runnerId]))?.id ?? DEPLOYMENT_STORE),
    holding: async (runnerId, digest) =>
      open((await queryOne(pool, HOLDING, [runnerId, digest]))?.id ?? DEPLOYMENT_STORE),
    ids: async () => (await queryAll(pool, IDS)).map(({ id }) => id),
    async probe(location, credentials) {
      const store = await bareStore('probe', location, credentials);
      const signal = AbortSignal.timeout(PROBE_MS);
      try {
        const content = Buffer.from(randomUUID());
        const { digest } = await store.put(pieces(content), {
          digest: sha256(content),
          maxBytes: content.length,
          signal,
        });
        if ((await store.stat(digest))?.bytes !== content.length)
          throw new BlobError('unavailable', 'the store does not have what was written to it');
        await store.delete(digest);
      } catch (error) {
        if (signal.aborted) throw new BlobError('unavailable', 'the store did not answer in time');
        throw error;
      } finally {
        store.close?.();
      }
    },
    close() {
      for (const one of closing) one();
    },
  };
}

async function* pieces(content: Buffer): AsyncGenerator<Uint8Array> {
  yield content;
}

const sha256 = (content: Buffer): string => `sha256:${createHash('sha256').update(content).digest('hex')}`;
