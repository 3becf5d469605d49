/** The secrets of projects: written encrypted, read as metadata. */
import {
  badRequest,
  BOUNDS,
  isSecretName,
  newUuid,
  resolveSecretWrite,
  secretNotFound,
  type SecretList,
  type SecretRecord,
  type SecretWrite,
  LIST_CURSORS,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Database, type Queryable } from '@releap/database';
import type { Encryption } from '../../platform/encryption/encryption.ts';
import { lockProject } from '../../tenancy/management/access.ts';
import type { Within } from '../../tenancy/management/project-scope.ts';
import { isMountedCredential, isStoreCredential } from '../object-stores/credential-secrets.ts';
import { pagedList, type PageRequest } from '../../platform/paged-list.ts';

/** Operations on secrets for both planes. The caller has been authorized for the project. */
export interface Secrets {
  /** @throws 400, 503 while values cannot be encrypted */
  put(projectId: string, name: string, body: SecretWrite, within?: Within): Promise<void>;
  list(projectId: string, query: SecretListQuery): Promise<SecretList>;
  /** @throws 404 */
  get(projectId: string, name: string): Promise<SecretRecord>;
  remove(projectId: string, name: string, within?: Within): Promise<void>;
}

export interface SecretListQuery extends PageRequest {
  include_object_store?: boolean;
}

interface Row {
  name: string;
  allowed_domains: string[];
  allow_http: boolean;
  description: string | null;
  object_store: boolean;
  created_at: Date;
  updated_at: Date;
}

const METADATA = `name, allowed_domains, allow_http, description, created_at, updated_at, ${isStoreCredential('secrets')} as object_store`;

/** $1 id, $2 project, $3 name, $4 domains, $5 description, $6 key, $7 envelope, $8 most secrets a project may have, $9 allow_http */
const PUT = statement<{ id: string }>(
  'secret-put',
  `insert into secrets (id, project_id, name, allowed_domains, description, key_id, envelope, allow_http)
   select $1::uuid, $2::uuid, $3::text, $4::jsonb, $5::text, $6::text, $7::bytea, $9::boolean
    where (select count(*) from secrets where project_id = $2 and deleted_at is null and name <> $3) < $8::integer
   on conflict (project_id, name) where deleted_at is null do update
     set allowed_domains = excluded.allowed_domains, allow_http = excluded.allow_http, description = excluded.description, key_id = excluded.key_id,
         envelope = excluded.envelope, updated_at = now()
   returning id`,
);

const LIST = pagedList<Row>('secret-list', LIST_CURSORS.secrets, {
  columns: METADATA,
  from: 'secrets',
  where: `project_id = $1 and deleted_at is null and ($2::boolean or not ${isStoreCredential('secrets')})`,
  parameters: 2,
  keys: [{ sql: 'name', type: 'text' }],
});

const GET = statement<Row>(
  'secret-get',
  `select ${METADATA} from secrets where project_id = $1 and name = $2 and deleted_at is null`,
);

const REMOVE = statement<{ id: string }>(
  'secret-remove',
  `update secrets set deleted_at = now(), updated_at = now()
    where project_id = $1 and name = $2 and deleted_at is null returning id`,
);

/**
 * Deleted secrets, with their placeholders, that no live sandbox uses, itself or for a mount, and no sandbox restored from a full
 * snapshot could use. $1 one of them, or null for all
 */
const ERASE = statement<{ id: string }>(
  'secret-erase',
  `with unused as (
     select x.id from secrets x
      where x.deleted_at is not null and ($1::uuid is null or x.id = $1)
        and not exists (select 1 from sandbox_secrets a join sandbox_states s on s.id = a.sandbox_id
                         where a.secret_id = x.id and s.desired <> 'deleted' and s.status <> 'deleted'
                           and (s.persistent or s.status <> 'failed'))
        and not exists (select 1 from sandbox_secrets a join snapshot_states n on n.sandbox_id = a.sandbox_id
                         where a.secret_id = x.id and n.kind = 'full' and n.status <> 'deleted' and n.desired <> 'deleted'
                           and n.status <> 'failed')
        and not ${isMountedCredential('x')}
      limit 1000 for update of x skip locked
   ), placeholders as (
     delete from sandbox_secrets where secret_id in (select id from unused)
   )
   delete from secrets where id in (select id from unused) returning id`,
);

export function createSecrets(database: Database, encryption: Encryption): Secrets {
  return {
    async put(projectId, name, body, within) {
      const secret = resolveSecretWrite(name, body);
      const sealed = await encryption.encrypt(secret.value, { kind: 'secret', projectId, name });
      await withTransaction(database, within, async (on) => {
        await lockProject(on, projectId);
        const written = await queryOne(on, PUT, [
          newUuid(),
          projectId,
          name,
          JSON.stringify(secret.allowedDomains),
          secret.description,
          sealed.keyId,
          sealed.envelope,
          BOUNDS.secretsPerProject,
          secret.allowHttp,
        ]);
        if (written === undefined)
          throw badRequest(
            `the project has ${BOUNDS.secretsPerProject} secrets, which is the most allowed: delete one first`,
            'limit_reached',
          );
      });
    },
    async list(projectId, { include_object_store: includeObjectStore = false, ...query }) {
      const { rows, next } = await LIST.page(database.pool, [projectId, includeObjectStore], query);
      return {
        ...next,
        secrets: rows.map((row) => ({
          ...toRecord(row),
          ...(includeObjectStore ? { object_store: row.object_store } : {}),
        })),
      };
    },
    async get(projectId, name) {
      const row = isSecretName(name) ? await queryOne(database.pool, GET, [projectId, name]) : undefined;
      if (row === undefined) throw secretNotFound(name);
      return toRecord(row);
    },
    async remove(projectId, name, within) {
      if (!isSecretName(name)) return;
      const removed = await withTransaction(database, within, (on) =>
        queryOne(on, REMOVE, [projectId, name]),
      );
      if (removed !== undefined) await eraseUnused(database.pool, removed.id);
    },
  };
}

/** Whether anything is encrypted: then its keys must exist. */
export async function hasEncrypted(on: Queryable): Promise<boolean> {
  const { rows } = await on.query<{ any: boolean }>(
    `select exists (select 1 from secrets) or exists (select 1 from registry_credentials)
       or exists (select 1 from stores where envelope is not null) as any`,
  );
  return rows[0]?.any === true;
}

/** Erases deleted values that no sandbox can use any more. @returns how many */
export async function eraseUnused(on: Queryable, id: string | null = null): Promise<number> {
  return (await queryAll(on, ERASE, [id])).length;
}

/** One transaction, with `within` if there is something beside the work. */
export async function withTransaction<T>(
  database: Database,
  within: Within | undefined,
  work: (on: Queryable) => Promise<T>,
): Promise<T> {
  return database.transaction(async (client) => {
    const result = await work(client);
    await within?.(client);
    return result;
  });
}

function toRecord(row: Row): SecretRecord {
  return {
    name: row.name,
    allowed_domains: row.allowed_domains,
    ...(row.allow_http ? { allow_http: true } : {}),
    ...(row.description === null ? {} : { description: row.description }),
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}
