/** The registry credentials of projects: written encrypted, read as metadata. */
import {
  badRequest,
  BOUNDS,
  checkRegistryHost,
  registryNotFound,
  resolveRegistryWrite,
  type RegistryKind,
  type RegistryList,
  type RegistryRecord,
  type RegistryWrite,
  LIST_CURSORS,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import type { Encryption } from '../../platform/encryption/encryption.ts';
import type { EncryptedTable, OldRow } from '../../platform/encryption/rewrap.ts';
import { lockProject } from '../../tenancy/management/access.ts';
import type { Within } from '../../tenancy/management/project-scope.ts';
import { withTransaction } from '../secrets/secrets.ts';
import { pagedList, type PageRequest } from '../../platform/paged-list.ts';

/** Operations on credentials for both planes. The caller has been authorized for the project. */
export interface Registries {
  /** @throws 400, 503 while passwords cannot be encrypted */
  put(projectId: string, host: string, body: RegistryWrite, within?: Within): Promise<void>;
  list(projectId: string, query: PageRequest): Promise<RegistryList>;
  /** @throws 400 for an invalid host, 404 */
  get(projectId: string, host: string): Promise<RegistryRecord>;
  /** @throws 400 for an invalid host */
  remove(projectId: string, host: string, within?: Within): Promise<void>;
}

interface Row {
  host: string;
  kind: RegistryKind;
  username: string;
  description: string | null;
  updated_at: Date;
}

const METADATA = 'host, kind, username, description, updated_at';

/** $1 project, $2 host, $3 kind, $4 user name, $5 description, $6 key, $7 envelope, $8 most credentials a project may have */
const PUT = statement<{ host: string }>(
  'registry-put',
  `insert into registry_credentials (project_id, host, kind, username, description, key_id, envelope)
   select $1::uuid, $2::text, $3::text, $4::text, $5::text, $6::text, $7::bytea
    where (select count(*) from registry_credentials where project_id = $1 and host <> $2) < $8::integer
   on conflict (project_id, host) do update
     set kind = excluded.kind, username = excluded.username, description = excluded.description,
         key_id = excluded.key_id, envelope = excluded.envelope, updated_at = now()
   returning host`,
);
const LIST = pagedList<Row>('registry-list', LIST_CURSORS.registries, {
  columns: METADATA,
  from: 'registry_credentials',
  where: 'project_id = $1',
  parameters: 1,
  keys: [{ sql: 'host', type: 'text' }],
});
export const ENCRYPTED_REGISTRIES: EncryptedTable = {
  kind: 'registry-password',
  old: statement<OldRow>(
    'rewrap-old-registries',
    `select project_id, host as name, project_id || ' ' || host as row, key_id, envelope from registry_credentials
      where (key_id < $1 or key_id > $1) and project_id || ' ' || host > $2 order by project_id || ' ' || host limit $3`,
  ),
  write: statement<{ done: number }>(
    'rewrap-registry',
    `update registry_credentials set key_id = $4, envelope = $5
      where project_id || ' ' || host = $1 and project_id = $2 and envelope = $3 returning 1 as done`,
  ),
};
const GET = statement<Row>(
  'registry-get',
  `select ${METADATA} from registry_credentials where project_id = $1 and host = $2`,
);
const REMOVE = statement(
  'registry-remove',
  'delete from registry_credentials where project_id = $1 and host = $2',
);

export function createRegistries(database: Database, encryption: Encryption): Registries {
  return {
    async put(projectId, hostText, body, within) {
      const credential = resolveRegistryWrite(hostText, body);
      const { host } = credential;
      const sealed = await encryption.encrypt(credential.password, {
        kind: 'registry-password',
        projectId,
        name: host,
      });
      await withTransaction(database, within, async (on) => {
        await lockProject(on, projectId);
        const written = await queryOne(on, PUT, [
          projectId,
          host,
          credential.kind,
          credential.username,
          credential.description,
          sealed.keyId,
          sealed.envelope,
          BOUNDS.registriesPerProject,
        ]);
        if (written === undefined)
          throw badRequest(
            `the project has ${BOUNDS.registriesPerProject} registry credentials, which is the most allowed: delete one first`,
            'limit_reached',
          );
      });
    },
    async list(projectId, query) {
      const { rows, next } = await LIST.page(database.pool, [projectId], query);
      return { registries: rows.map(toRecord), ...next };
    },
    async get(projectId, hostText) {
      const host = checkRegistryHost(hostText);
      const row = await queryOne(database.pool, GET, [projectId, host]);
      if (row === undefined) throw registryNotFound(host);
      return toRecord(row);
    },
    async remove(projectId, hostText, within) {
      const host = checkRegistryHost(hostText);
      await withTransaction(database, within, (on) => queryAll(on, REMOVE, [projectId, host]));
    },
  };
}

function toRecord(row: Row): RegistryRecord {
  return {
    host: row.host,
    kind: row.kind,
    username: row.username,
    ...(row.description === null ? {} : { description: row.description }),
    updated_at: row.updated_at.toISOString(),
  };
}
