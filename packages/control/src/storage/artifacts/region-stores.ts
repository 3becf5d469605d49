/** Stores of regions, as the operator sets them. */
import {
  badRequest,
  conflict,
  newUuid,
  quote,
  type OperatorRegion,
  type RegionStoreRequest,
} from '@releap/contract';
import { isUniqueViolation, queryAll, queryOne, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import { readRegion } from '../../fleet/regions/operator-regions.ts';
import type { EncryptedTable, OldRow } from '../../platform/encryption/rewrap.ts';
import type { Encryption } from '../../platform/encryption/encryption.ts';
import { BlobError } from './blob-store.ts';
import { storeOwner, type StoreLocation, type Stores } from './stores.ts';

export const ENCRYPTED_STORES: EncryptedTable = {
  kind: 'store-credentials',
  old: statement<OldRow>(
    'rewrap-old-stores',
    `select '' as project_id, id::text as name, id::text as row, key_id, envelope from stores
      where (key_id < $1 or key_id > $1) and id::text > $2 order by id::text limit $3`,
  ),
  write: statement<{ done: number }>(
    'rewrap-store',
    `update stores set key_id = $4, envelope = $5
      where id = $1::uuid and $2::text = '' and envelope = $3 returning 1 as done`,
  ),
};

/** $1 bucket, $2 prefix, $3 endpoint */
const AT = statement<{ id: string }>(
  'store-at',
  `select id from stores where bucket = $1 and prefix = $2 and coalesce(endpoint, '') = coalesce($3, '')`,
);
/** $1 id, $2 bucket, $3 prefix, $4 endpoint, $5 region of the service, $6 key, $7 envelope */
const PUT = statement(
  'store-put',
  `insert into stores (id, bucket, prefix, endpoint, s3_region, key_id, envelope) values ($1, $2, $3, $4, $5, $6, $7)
   on conflict (id) do update set s3_region = excluded.s3_region, key_id = excluded.key_id, envelope = excluded.envelope,
     updated_at = clock_timestamp()`,
);
/** $1 region, $2 store */
const USE = statement(
  'region-store-use',
  `insert into region_stores (region, store_id) values ($1, $2) on conflict (region) do update set store_id = excluded.store_id`,
);
/** $1 region */
const LEAVE = statement('region-store-leave', 'delete from region_stores where region = $1');

export interface RegionStores {
  /** @throws 400 when the bucket cannot be used, 404, 503 while credentials cannot be encrypted */
  set(region: string, body: RegionStoreRequest): Promise<OperatorRegion>;
  /** @throws 404 */
  remove(region: string): Promise<OperatorRegion>;
}

export interface RegionStoresOptions {
  database: Database;
  encryption: Encryption;
  stores: Pick<Stores, 'probe'>;
  log: Logger;
}

export function createRegionStores(options: RegionStoresOptions): RegionStores {
  const { database, encryption, stores, log } = options;
  return {
    async set(region, { credentials, bucket, prefix = '', endpoint = null, s3_region = 'us-east-1' }) {
      await readRegion(database.pool, region);
      const location: StoreLocation = { bucket, prefix, endpoint, s3_region };
      await stores.probe(location, credentials).catch((error: unknown) => {
        if (!(error instanceof BlobError)) throw error;
        throw badRequest(`the bucket ${quote(bucket)} cannot be used: ${error.message}`);
      });
      const id = (await queryOne(database.pool, AT, [bucket, prefix, endpoint]))?.id ?? newUuid();
      const { keyId, envelope } = await encryption.encrypt(JSON.stringify(credentials), storeOwner(id));
      const written = await database
        .transaction(async (on) => {
          await queryAll(on, PUT, [id, bucket, prefix, endpoint, s3_region, keyId, envelope]);
          await queryAll(on, USE, [region, id]);
          return await readRegion(on, region);
        })
        .catch((error: unknown) => {
          throw isUniqueViolation(error, 'stores_by_location')
            ? conflict('another request has just set this bucket: try again')
            : error;
        });
      log.info({ region, store: id, bucket }, 'a region has a store of its own');
      return written;
    },
    async remove(region) {
      await readRegion(database.pool, region);
      await queryAll(database.pool, LEAVE, [region]);
      return await readRegion(database.pool, region);
    },
  };
}
