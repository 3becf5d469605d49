import { formatSandboxId, type CursorPosition, type SandboxId, type SandboxRecord } from '@releap/contract';
import { createRowReader, queryOne, statement, type Database, type Queryable } from '@releap/database';
import { newestFirst } from '../../platform/newest-first.ts';
import { FACT_COLUMNS, type SandboxFacts } from './transitions.ts';

/** The columns of a public record, without large ones. */
const RECORD = `id, spec ->> 'name' as name, spec ->> 'image_ref' as image_ref, (spec ->> 'vcpus')::integer as vcpus,
  manifest_name, runner_id, status, mode, cpu, mem_mib, scratch_mib, vm_ip, host_ip, port_map, error, region, forked_from, spot, spot_evicted_at, persistent, created_at, updated_at`;

/**
 * Whether a tenant may access the sandbox: its project owns it, and it is in the region of the id. An id is either a
 * bare UUID or has the region as a prefix. Parameters as `$2`.
 */
export const REACHABLE = (project: string, region: string, alias = 'sandboxes'): string =>
  `${alias}.project_id = ${project} and ${alias}.owner_kind = 'project' and (${region}::text is null or ${alias}.region = ${region})`;

export interface RecordRow {
  id: string;
  name: string;
  image_ref: string;
  manifest_name: string | null;
  runner_id: string | null;
  status: SandboxRecord['status'];
  mode: SandboxRecord['mode'];
  cpu: number;
  vcpus: number;
  mem_mib: number;
  scratch_mib: number;
  vm_ip: string | null;
  host_ip: string | null;
  port_map: SandboxRecord['port_map'];
  error: string | null;
  region: string;
  forked_from: string | null;
  spot: boolean;
  spot_evicted_at: Date | null;
  persistent: boolean;
  created_at: Date;
  updated_at: Date;
}

/** With what only reads of one sandbox have. */
export interface DetailRow extends RecordRow {
  /** Null once it is being deleted, too. */
  lease_expires_at: Date | null;
}

const LEASE = `(select expires_at from sandbox_leases where sandbox_id = id and status not in ('deleting', 'deleted'))`;

const GET = statement<DetailRow & { n: number }>(
  'sandbox-get',
  `select key.n, sandbox.*
     from jsonb_to_recordset($1::jsonb) as key(n integer, id uuid, project uuid, in_region text)
    cross join lateral (
      select ${RECORD}, ${LEASE} as lease_expires_at from sandboxes where id = key.id and ${REACHABLE('key.project', 'key.in_region')} limit 1
    ) sandbox`,
);

const FACTS = statement<SandboxFacts & { id: string; region: string }>(
  'sandbox-facts',
  `select id, region, ${FACT_COLUMNS.join(', ')} from sandboxes where id = $1 and ${REACHABLE('$2', '$3')}`,
);

const LIST = newestFirst<RecordRow>('sandbox-list', {
  columns: RECORD,
  from: 'sandboxes',
  where: `project_id = $1 and owner_kind = 'project' and status <> 'deleted'`,
  parameters: 1,
});

export type ReadRecord = (id: SandboxId, projectId: string) => Promise<DetailRow | undefined>;

export function createRecordReader(on: Queryable): ReadRecord {
  const read = createRowReader<{ id: string; project: string; in_region: string | null }, DetailRow>(on, GET);
  return ({ uuid, region }, projectId) => read({ id: uuid, project: projectId, in_region: region });
}

export async function getFacts(
  on: Queryable,
  { uuid, region }: SandboxId,
  projectId: string,
): Promise<(SandboxFacts & { id: string; region: string }) | undefined> {
  return queryOne(on, FACTS, [uuid, projectId, region]);
}

export function listRecords(
  database: Database,
  projectId: string,
  limit: number,
  after: CursorPosition | null,
): Promise<{ rows: RecordRow[]; last: CursorPosition | null }> {
  return LIST.page(database.pool, [projectId], limit, after);
}

/** The public record in lists. */
export function toRecord(row: RecordRow): SandboxRecord {
  const record: SandboxRecord = {
    id: formatSandboxId(row.region, row.id),
    name: row.name,
    image_ref: row.image_ref,
    status: row.status,
    mode: row.mode,
    cpu: row.cpu,
    vcpus: row.vcpus,
    mem_mib: row.mem_mib,
    scratch_mib: row.scratch_mib,
    port_map: row.port_map,
    error: row.error,
    region: row.region,
    spot: row.spot,
    spot_evicted_at: row.spot_evicted_at?.toISOString() ?? null,
    persistent: row.persistent,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
  if (row.manifest_name !== null) record.manifest_name = row.manifest_name;
  if (row.runner_id !== null) record.runner_id = row.runner_id;
  if (row.vm_ip !== null) record.vm_ip = row.vm_ip;
  if (row.host_ip !== null) record.host_ip = row.host_ip;
  return record;
}

/** The public record of a single read, with further fields. */
export function toDetail(row: DetailRow): SandboxRecord {
  const source = row.forked_from;
  return {
    ...toRecord(row),
    forked_from: source === null ? null : formatSandboxId(row.region, source),
    ...(row.lease_expires_at !== null && { lease_expires_at: row.lease_expires_at.toISOString() }),
  };
}
