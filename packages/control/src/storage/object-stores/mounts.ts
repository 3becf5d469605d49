/** The mounts of sandboxes: which stores they have where, and the keys with which their guests sign. */
import { randomBytes } from 'node:crypto';
import {
  badRequest,
  conflict,
  LIMITS,
  quote,
  type GuestStore,
  type ObjectStoreMount,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Queryable } from '@releap/database';
import { findObjectStore } from './object-stores.ts';

/** A mount with its store looked up. */
export interface ResolvedMount {
  storeId: string;
  storeName: string;
  path: string;
  readOnly: boolean;
}

/** $1 store: the names of its secrets that the project does not have */
const MISSING_SECRETS = statement<{ name: string }>(
  'object-store-missing-secrets',
  `select wanted.name
     from object_stores o, unnest(array[o.access_key_secret, o.secret_key_secret, o.session_token_secret]) as wanted(name)
    where o.id = $1 and wanted.name is not null
      and not exists (select 1 from secrets x where x.project_id = o.project_id and x.name = wanted.name and x.deleted_at is null)`,
);

/**
 * `$2` mounts. Keeps each store from its deletion until the transaction ends, and writes nothing of one that is deleted. $1 sandbox
 */
const INSERT = statement<{ mount_path: string }>(
  'object-store-mounts-insert',
  `with kept as (
     select id from object_stores
      where id in (select store from jsonb_to_recordset($2::jsonb) as t(store uuid)) and deleted_at is null for key share
   )
   insert into object_store_mounts (sandbox_id, mount_path, object_store_id, read_only, guest_access_key, guest_secret_key)
   select $1::uuid, t.path, t.store, t.read_only, t.access_key, t.secret_key
     from jsonb_to_recordset($2::jsonb) as t(path text, store uuid, read_only boolean, access_key text, secret_key text)
     join kept on kept.id = t.store
   returning mount_path`,
);

/** $1 the new sandbox, $2 its source */
const COPY = statement(
  'object-store-mounts-copy',
  `insert into object_store_mounts (sandbox_id, mount_path, object_store_id, read_only, guest_access_key, guest_secret_key)
   select $1::uuid, m.mount_path, m.object_store_id, m.read_only, m.guest_access_key, m.guest_secret_key
     from object_store_mounts m join object_stores o on o.id = m.object_store_id and o.deleted_at is null
    where m.sandbox_id = $2`,
);

interface ListRow {
  mount_path: string;
  object_store: string;
  object_store_id: string;
  read_only: boolean;
  created_at: Date;
}

/** $1 sandbox */
const LIST = statement<ListRow>(
  'object-store-mounts-list',
  `select m.mount_path, o.name as object_store, o.id as object_store_id, m.read_only, m.created_at
     from object_store_mounts m join object_stores o on o.id = m.object_store_id
    where m.sandbox_id = $1 order by m.mount_path`,
);

/** $1 sandbox, $2 path */
const REMOVE = statement(
  'object-store-mount-remove',
  'delete from object_store_mounts where sandbox_id = $1 and mount_path = $2',
);

interface GuestRow extends Omit<GuestStore, 'path'> {
  id: string;
  mount_path: string;
}

/** $1 sandboxes */
const OF_SANDBOXES = statement<GuestRow>(
  'object-store-mounts-of-sandboxes',
  `select m.sandbox_id as id, m.mount_path, o.bucket, o.prefix, o.region, m.read_only, o.dir_cache_secs,
          case when o.provider <> '' then o.provider when o.endpoint = '' then 'AWS' else 'Other' end as provider,
          m.guest_access_key as access_key, m.guest_secret_key as secret_key
     from object_store_mounts m join object_stores o on o.id = m.object_store_id
    where m.sandbox_id = any($1::uuid[]) order by m.sandbox_id, m.mount_path`,
);

/**
 * @param field names the mount in errors
 * @throws 400 and 404 of the reference, 409 when the credentials of the store were deleted
 */
export async function resolveMount(
  on: Queryable,
  projectId: string,
  mount: { object_store: string; mount_path: string; read_only: boolean | null },
): Promise<ResolvedMount> {
  const store = await findObjectStore(on, projectId, mount.object_store);
  const missing = await queryAll(on, MISSING_SECRETS, [store.id]);
  if (missing.length > 0)
    throw conflict(
      `object store ${quote(store.name)} cannot be mounted: its secret ${missing.map(({ name }) => quote(name)).join(', ')} was deleted`,
      'secret_missing',
    );
  const { mount_path: path, read_only: readOnly } = mount;
  return { storeId: store.id, storeName: store.name, path, readOnly: readOnly ?? store.read_only };
}

/** In the transaction that writes the sandbox. @throws 409 when a store was deleted meanwhile */
export async function insertMounts(
  on: Queryable,
  sandboxId: string,
  mounts: readonly ResolvedMount[],
): Promise<void> {
  if (mounts.length === 0) return;
  const rows = mounts.map(({ storeId, path, readOnly }) => ({
    path,
    store: storeId,
    read_only: readOnly,
    // As long as those of AWS, which some clients check.
    access_key: `RLPS${randomBytes(8).toString('hex').toUpperCase()}`,
    secret_key: randomBytes(30).toString('base64url'),
  }));
  const written = await queryAll(on, INSERT, [sandboxId, JSON.stringify(rows)]);
  if (written.length < rows.length)
    throw conflict('an object store was deleted meanwhile: it is not ready any more', 'concurrent_change');
}

/** Gives a fork, or a sandbox that is restored from a full snapshot, the mounts that its memory has. */
export async function copyMounts(on: Queryable, ids: { from: string; to: string }): Promise<void> {
  await queryAll(on, COPY, [ids.to, ids.from]);
}

export async function listMounts(on: Queryable, sandboxId: string): Promise<ObjectStoreMount[]> {
  return (await queryAll(on, LIST, [sandboxId])).map(({ created_at, ...row }) => ({
    object_store: row.object_store,
    object_store_id: row.object_store_id,
    mount_path: row.mount_path,
    read_only: row.read_only,
    created_at: created_at.toISOString(),
  }));
}

export async function removeMount(on: Queryable, sandboxId: string, path: string): Promise<void> {
  await queryAll(on, REMOVE, [sandboxId, path]);
}

/** What assignments say of mounts, by sandbox; those without any are absent. */
export async function guestStores(
  on: Queryable,
  sandboxIds: readonly string[],
): Promise<Map<string, GuestStore[]>> {
  const found = new Map<string, GuestStore[]>();
  if (sandboxIds.length === 0) return found;
  for (const { id, mount_path: path, ...row } of await queryAll(on, OF_SANDBOXES, [sandboxIds])) {
    const { bucket, prefix, region, provider, read_only, dir_cache_secs, access_key, secret_key } = row;
    const store = {
      path,
      bucket,
      prefix,
      region,
      provider,
      read_only,
      dir_cache_secs,
      access_key,
      secret_key,
    };
    found.set(id, [...(found.get(id) ?? []), store]);
  }
  return found;
}

/** Everything that is mounted in a sandbox `s`. */
const PATHS = `select m.mount_path from object_store_mounts m where m.sandbox_id = s.id
  union all select a.mount_path from volume_attachments a where a.sandbox_id = s.id`;
/** $1 sandbox, $2 path, $3 store, $4 read only. Locks the sandbox, so that two mounts at once are not more than allowed. */
const ROOM = statement<{ mounts: number; taken: boolean; same: boolean; nested: string | null }>(
  'object-store-mounts-room',
  `select (select count(*)::integer from object_store_mounts m where m.sandbox_id = s.id) as mounts,
          exists (select 1 from (${PATHS}) p where p.mount_path = $2) as taken,
          exists (select 1 from object_store_mounts m where m.sandbox_id = s.id and m.mount_path = $2
                     and m.object_store_id = $3 and m.read_only = $4) as same,
          (select p.mount_path from (${PATHS}) p
            where starts_with($2, p.mount_path || '/') or starts_with(p.mount_path, $2 || '/') limit 1) as nested
     from sandbox_states s where s.id = $1 and s.status = 'running' for no key update of s`,
);

/**
 * Writes a mount of a sandbox that runs.
 * @returns false for one that is written already. Whether it was made, only the guest knows: the server that wrote it may have died
 *   before it asked for it.
 * @throws 409 for a path that is taken, or when it does not run; 400 when there are too many mounts
 */
export async function addMount(
  on: Queryable,
  sandboxId: string,
  mount: ResolvedMount,
  notRunning: () => Error,
): Promise<boolean> {
  const { path } = mount;
  const room = await queryOne(on, ROOM, [sandboxId, path, mount.storeId, mount.readOnly]);
  if (room === undefined) throw notRunning();
  if (room.same) return false;
  if (room.taken) throw pathTaken(path);
  if (room.nested !== null)
    throw conflict(
      `mount_path ${quote(path)} and the mount at ${quote(room.nested)} are one in the other: choose another path`,
      'mount_path_taken',
    );
  if (room.mounts >= LIMITS.objectStoreMountsPerSandbox)
    throw badRequest(
      `the sandbox has ${LIMITS.objectStoreMountsPerSandbox} mounts of object stores, which is the most allowed`,
      'limit_reached',
    );
  await insertMounts(on, sandboxId, [mount]);
  return true;
}

export const pathTaken = (path: string): Error =>
  conflict(`mount_path ${quote(path)} is already mounted`, 'mount_path_taken');
