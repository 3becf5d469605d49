/** Endpoints of sandboxes in the database. Every statement is scoped by project. */
import {
  badRequest,
  BOUNDS,
  conflict,
  formatSandboxId,
  isUuid,
  notFound,
  quote,
  sandboxNotFound,
  unavailable,
  type EndpointRecord,
  LIST_CURSORS,
} from '@releap/contract';
import { queryOne, statement, type Database } from '@releap/database';
import { readSandboxId } from '../../compute/sandboxes/change.ts';
import { REACHABLE } from '../../compute/sandboxes/queries.ts';
import { pagedList, type NextPage, type PageRequest } from '../../platform/paged-list.ts';

interface SandboxRow {
  id: string;
  region: string;
  preview_url: string | null;
}

interface EndpointRow {
  id: string;
  port: number;
  public: boolean;
  created_at: Date;
  updated_at: Date;
}

const COLUMNS = 'id, port, public, created_at, updated_at';

const SANDBOX = statement<SandboxRow>(
  'endpoint-sandbox',
  `select s.id, s.region, r.preview_url from sandboxes s join regions r on r.id = s.region
    where s.id = $1 and ${REACHABLE('$2', '$3', 's')} and s.status not in ('deleting', 'deleted')`,
);
/** $1 id, $2 sandbox, $3 project, $4 port, $5 public, $6 most endpoints. Nothing if there are as many or the port has one. */
const INSERT = statement<EndpointRow>(
  'endpoint-insert',
  `insert into endpoints (id, sandbox_id, project_id, port, public)
   select $1::uuid, $2::uuid, $3::uuid, $4::integer, $5::boolean
     where (select count(*) from endpoints where sandbox_id = $2) < $6::integer
   on conflict do nothing returning ${COLUMNS}`,
);
const BY_PORT = statement<EndpointRow>(
  'endpoint-by-port',
  `select ${COLUMNS} from endpoints where sandbox_id = $1 and port = $2`,
);
const LIST = pagedList<EndpointRow>('endpoint-list', LIST_CURSORS.endpoints, {
  columns: COLUMNS,
  from: 'endpoints',
  where: 'sandbox_id = $1',
  parameters: 1,
  keys: [{ sql: 'port', type: 'integer' }],
});
const UPDATE = statement<EndpointRow>(
  'endpoint-update',
  `update endpoints set public = $3 where id = $1 and sandbox_id = $2 returning ${COLUMNS}`,
);
const DELETE = statement<{ id: string }>(
  'endpoint-delete',
  'delete from endpoints where id = $1 and sandbox_id = $2 returning id',
);

/** A sandbox of the project, for calls on its endpoints. */
export interface ExposedSandbox {
  id: string;
  shownId: string;
  projectId: string;
  toRecord: (row: EndpointRow) => EndpointRecord;
  /** URL of the link with this token, without a slash at its end. */
  linkUrl: (port: number, token: string) => string;
}

/** @throws 404; 503 when its region has no preview domain */
export async function exposedSandbox(
  database: Database,
  shownId: string,
  projectId: string,
): Promise<ExposedSandbox> {
  const { uuid, region } = readSandboxId(shownId);
  const row = await queryOne(database.pool, SANDBOX, [uuid, projectId, region]);
  if (row === undefined) throw sandboxNotFound(shownId);
  const base = row.preview_url;
  if (base === null)
    throw unavailable(
      `region ${quote(row.region)} has no preview domain; its operator can set RELEAP_PREVIEW_DOMAIN`,
    );
  const id = formatSandboxId(row.region, row.id);
  return {
    id: row.id,
    shownId: id,
    projectId,
    toRecord: (endpoint) => ({
      id: endpoint.id,
      vm_id: id,
      port: endpoint.port,
      public: endpoint.public,
      url: previewUrl(base, endpoint.port, id),
      created_at: endpoint.created_at.toISOString(),
      updated_at: endpoint.updated_at.toISOString(),
    }),
    linkUrl: (port, token) => withoutSlash(previewUrl(base, port, token)),
  };
}

/** For clients that add a path to it. */
export const withoutSlash = (url: string): string => url.replace(/\/+$/, '');

/** @throws 400 when the sandbox has as many endpoints as it may; 409 when the port is exposed */
export async function createEndpoint(
  database: Database,
  sandbox: ExposedSandbox,
  { id, port, isPublic }: { id: string; port: number; isPublic: boolean },
): Promise<EndpointRecord> {
  const { endpoint, isNew } = await ensureEndpoint(database, sandbox, { id, port, isPublic });
  // The same id: a retry under the same Idempotency-Key.
  if (!isNew && endpoint.id !== id)
    throw conflict(`port ${port} of sandbox ${quote(sandbox.shownId)} is already exposed`, 'already_exposed');
  return endpoint;
}

/** The endpoint of a port; creates it if there is none. @throws 400 */
export async function ensureEndpoint(
  database: Database,
  sandbox: ExposedSandbox,
  { id, port, isPublic }: { id: string; port: number; isPublic: boolean },
): Promise<{ endpoint: EndpointRecord; isNew: boolean }> {
  const created = await queryOne(database.pool, INSERT, [
    id,
    sandbox.id,
    sandbox.projectId,
    port,
    isPublic,
    BOUNDS.endpointsPerSandbox,
  ]);
  if (created !== undefined) return { endpoint: sandbox.toRecord(created), isNew: true };
  const existing = await queryOne(database.pool, BY_PORT, [sandbox.id, port]);
  if (existing === undefined)
    throw badRequest(
      `sandbox ${quote(sandbox.shownId)} has ${BOUNDS.endpointsPerSandbox} endpoints, which is the most allowed`,
      'limit_reached',
    );
  return { endpoint: sandbox.toRecord(existing), isNew: false };
}

export async function listEndpoints(
  database: Database,
  sandbox: ExposedSandbox,
  query: PageRequest,
): Promise<{ endpoints: EndpointRecord[] } & NextPage> {
  const { rows, next } = await LIST.page(database.pool, [sandbox.id], query);
  return { endpoints: rows.map(sandbox.toRecord), ...next };
}

/** @throws 404 */
export async function updateEndpoint(
  database: Database,
  sandbox: ExposedSandbox,
  endpointId: string,
  isPublic: boolean,
): Promise<EndpointRecord> {
  const row = isUuid(endpointId)
    ? await queryOne(database.pool, UPDATE, [endpointId, sandbox.id, isPublic])
    : undefined;
  if (row === undefined) throw endpointNotFound(sandbox, endpointId);
  return sandbox.toRecord(row);
}

/** @throws 404 */
export async function deleteEndpoint(
  database: Database,
  sandbox: ExposedSandbox,
  endpointId: string,
): Promise<void> {
  const row = isUuid(endpointId)
    ? await queryOne(database.pool, DELETE, [endpointId, sandbox.id])
    : undefined;
  if (row === undefined) throw endpointNotFound(sandbox, endpointId);
}

function endpointNotFound({ shownId }: ExposedSandbox, endpointId: string): Error {
  return notFound(`sandbox ${quote(shownId)} has no endpoint ${quote(endpointId)}`, 'endpoint_not_found');
}

/**
 * `https://<port>-<name>.<domain>/` for the base URL `https://<domain>`.
 * @param name id of the sandbox, or the token of a link
 */
function previewUrl(base: string, port: number, name: string): string {
  const url = new URL(base);
  return `${url.protocol}//${port}-${name}.${url.host}/`;
}
