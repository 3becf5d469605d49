/** The rows of object stores: writes, reads and deletes. */
import {
  badRequest,
  BOUNDS,
  conflict,
  objectStoreNotFound,
  quote,
  resolveObjectStoreCreate,
  type ObjectStoreCreateRequest,
  type ObjectStoreDeleteResponse,
  type ObjectStoreList,
  type ObjectStoreRecord,
  type ResolvedObjectStore,
  LIST_CURSORS,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Database, type Queryable } from '@releap/database';
import { findByRef } from '../../platform/find-by-ref.ts';
import type { IdGenerator } from '../../platform/idempotency/id-generator.ts';
import type { ProjectScope } from '../../tenancy/management/project-scope.ts';
import {
  insertNamed,
  namedLists,
  type NamedListQuery,
  type NamedResource,
} from '../../tenancy/management/named-resources.ts';

/** Operations on object stores for both planes. The caller has been authorized for the project. */
export interface ObjectStores {
  /** @throws 400, 409 */
  create(project: ProjectScope, body: ObjectStoreCreateRequest, ids: IdGenerator): Promise<ObjectStoreRecord>;
  list(projectId: string, query: NamedListQuery): Promise<ObjectStoreList>;
  /** @throws 400 for a text that is the id of one store and the name of another, 404 */
  get(projectId: string, idOrName: string): Promise<ObjectStoreRecord>;
  /** @throws like `get`, 409 while it is mounted */
  remove(project: ProjectScope, idOrName: string): Promise<ObjectStoreDeleteResponse>;
}

export interface ObjectStoreRow extends ResolvedObjectStore {
  id: string;
  created_at: Date;
  updated_at: Date;
  deleted_at: Date | null;
}

const CONFIGURATION = `name, bucket, access_key_secret, secret_key_secret, session_token_secret, endpoint, region, prefix,
  path_style, read_only, provider, dir_cache_secs`;
const COLUMNS = `id, ${CONFIGURATION}, created_at, updated_at, deleted_at`;

/** $1 id, $2 project, $3 configuration, $4 most stores a project may have */
const INSERT = statement<ObjectStoreRow>(
  'object-store-insert',
  `insert into object_stores (id, project_id, ${CONFIGURATION})
   select $1::uuid, $2::uuid, ${CONFIGURATION} from jsonb_populate_record(null::object_stores, $3::jsonb)
    where (select count(*) from object_stores where project_id = $2 and deleted_at is null) < $4::integer
   returning ${COLUMNS}`,
);

/** $1 project, $2 names */
const SECRETS = statement<{ name: string }>(
  'object-store-secrets',
  'select name from secrets where project_id = $1 and name = any($2::text[]) and deleted_at is null',
);

const listStores = namedLists<ObjectStoreRow>('object-store', LIST_CURSORS.objectStores, {
  columns: COLUMNS,
  from: 'object_stores',
});

/** $1 project, $2 id (null: none), $3 name */
const FIND = statement<ObjectStoreRow>(
  'object-store-find',
  `select ${COLUMNS} from object_stores
    where project_id = $1 and deleted_at is null and (id = $2 or name = $3)`,
);

/** Locks it, so that no mount is written before its deletion is. $1 id */
const LOCK = statement<{ id: string }>(
  'object-store-lock',
  'select id from object_stores where id = $1 and deleted_at is null for update',
);

/** A sandbox that has it mounted, or mounts it when it starts. $1 id */
const MOUNTED = statement<{ name: string }>(
  'object-store-mounted',
  `select s.name from object_store_mounts m join sandbox_states s on s.id = m.sandbox_id
    where m.object_store_id = $1 and s.status <> 'deleted' and s.desired <> 'deleted'
      and (s.persistent or s.status <> 'failed')
    order by s.created_at limit 1`,
);

/** $1 id */
const RETIRE = statement(
  'object-store-retire',
  'update object_stores set deleted_at = now(), updated_at = now() where id = $1',
);

/** $1 id, $2 project */
const BY_ID = statement<ObjectStoreRow>(
  'object-store-by-id',
  `select ${COLUMNS} from object_stores where id = $1 and project_id = $2`,
);

const OBJECT_STORE: NamedResource<ObjectStoreRow> = {
  kind: 'object_store',
  one: 'an object store',
  many: 'object stores',
  most: BOUNDS.objectStoresPerProject,
  nameIndex: 'object_stores_by_name',
  byId: BY_ID,
};

export function createObjectStores(database: Database): ObjectStores {
  return {
    async create(project, body, ids) {
      const store = resolveObjectStoreCreate(body);
      const values = [project.id, JSON.stringify(store), OBJECT_STORE.most];
      const row = await insertNamed(
        database,
        OBJECT_STORE,
        { project, name: store.name, ids },
        async (on, id) => {
          await requireSecrets(on, project.id, store);
          return queryOne(on, INSERT, [id, ...values]);
        },
      );
      return toRecord(row);
    },
    async list(projectId, query) {
      const { rows, next } = await listStores(database.pool, projectId, query);
      return { object_stores: rows.map(toRecord), ...next };
    },
    get: async (projectId, idOrName) => toRecord(await findObjectStore(database.pool, projectId, idOrName)),
    async remove(project, idOrName) {
      const { id, name } = await findObjectStore(database.pool, project.id, idOrName);
      await database.transaction(async (on) => {
        if ((await queryOne(on, LOCK, [id])) === undefined) throw objectStoreNotFound(idOrName);
        const sandbox = await queryOne(on, MOUNTED, [id]);
        if (sandbox !== undefined)
          throw conflict(
            `object store ${quote(name)} is mounted by sandbox ${quote(sandbox.name)}: unmount it, or delete the sandbox`,
            'in_use',
          );
        await queryAll(on, RETIRE, [id]);
        await project.audit('object_store.delete', { kind: 'object_store', id })?.(on);
      });
      return { id, state: 'deleted' };
    },
  };
}

/** @throws 400 for a text that is the id of one store and the name of another, 404 */
export function findObjectStore(on: Queryable, projectId: string, idOrName: string): Promise<ObjectStoreRow> {
  const reference = { find: FIND, noun: 'object store', notFound: objectStoreNotFound };
  return findByRef(on, reference, projectId, idOrName);
}

/** @throws 400 naming all that the project does not have */
async function requireSecrets(
  on: Queryable,
  projectId: string,
  { access_key_secret, secret_key_secret, session_token_secret }: ResolvedObjectStore,
): Promise<void> {
  const names = [access_key_secret, secret_key_secret, session_token_secret].filter((name) => name !== null);
  const known = new Set((await queryAll(on, SECRETS, [projectId, names])).map(({ name }) => name));
  const unknown = [...new Set(names)].filter((name) => !known.has(name));
  if (unknown.length > 0)
    throw badRequest(
      `the project has no secret ${unknown.map((name) => quote(name)).join(', ')}: write it first with PUT /secrets/:name`,
    );
}

function toRecord({
  deleted_at,
  session_token_secret,
  created_at,
  updated_at,
  ...row
}: ObjectStoreRow): ObjectStoreRecord {
  return {
    ...row,
    ...(session_token_secret === null ? {} : { session_token_secret }),
    state: deleted_at === null ? 'ready' : 'deleted',
    created_at: created_at.toISOString(),
    updated_at: updated_at.toISOString(),
  };
}
