import {
  formatSandboxId,
  newUuid,
  type DesiredState,
  type Origin,
  type ResolvedSandbox,
  type SandboxId,
  type SandboxRecord,
} from '@releap/contract';
import { all, first, statement, type Database, type Queryable } from '@releap/database';
import type { ResolvedRoot } from '../images/images.ts';
import type { Minted } from '../secrets/placeholders.ts';
import type { SandboxFacts } from './transitions.ts';

/** What a record needs, and nothing that is large. */
const RECORD = `id, name, image_ref, manifest_name, runner_id, status, mode, cpu, vcpus, mem_mib, scratch_mib,
  vm_ip, host_ip, port_map, error, region, forked_from, spot, spot_evicted_at, persistent, created_at`;

/** Whether a sandbox is of the region that its id names, if it names one: each has one id, and its bare UUID. */
export const IN_REGION = (region: string): string => `(${region}::text is null or region = ${region})`;

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
}

const GET = statement<RecordRow>(
  'sandbox-get',
  `select ${RECORD} from sandboxes where id = $1 and project_id = $2 and ${IN_REGION('$3')}`,
);

const FACTS = statement<SandboxFacts & { id: string; region: string }>(
  'sandbox-facts',
  `select id, region, status, desired, persistent, spot, volume_count, docker_data_mib, gpu_host, manifest_name, has_memory, start_from
     from sandboxes where id = $1 and project_id = $2 and ${IN_REGION('$3')}`,
);

const position = `to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as position`;
const FIRST_PAGE = statement<RecordRow & { position: string }>(
  'sandbox-list-first',
  `select ${RECORD}, ${position} from sandboxes where project_id = $1 and status <> 'deleted'
    order by created_at desc, id desc limit $2`,
);
const NEXT_PAGE = statement<RecordRow & { position: string }>(
  'sandbox-list-next',
  `select ${RECORD}, ${position} from sandboxes where project_id = $1 and status <> 'deleted'
      and (created_at, id) < ($3::timestamptz, $4::uuid)
    order by created_at desc, id desc limit $2`,
);

/** Sandbox, its job, its placeholders and its desired state: one statement, so one transaction. */
const INSERT = statement<{ id: string }>(
  'sandbox-insert',
  `with job as (
     insert into jobs (id, project_id, kind, status, sandbox_id) values ($2, $3, 'vm.create', 'queued', $1)
   ), attached as (
     insert into sandbox_secrets (sandbox_id, placeholder_hash, secret_id, name)
     select $1::uuid, decode(t.hash, 'hex'), t.secret_id, t.name
       from jsonb_to_recordset($27::jsonb) as t(secret_id uuid, name text, hash text)
   )
   insert into sandboxes (id, job_id, project_id, name, region, status, desired, deadline_at, mode, cpu, vcpus, mem_mib,
     scratch_mib, gpu_host, docker_data_mib, ports, env, egress_policy, persistent, spot, cpu_arch, image_ref, root,
     access_token_hash, origin, parent_snapshot_id, start_from, has_memory)
   values ($1, $2, $3, $4, $5, 'pending', $6, now() + $7 * interval '1 millisecond', $8, $9, $10, $11,
     $12, $13, $14, $15::jsonb, $16::jsonb, $17::jsonb, $18, $19, $20, $21, $22::jsonb, $23,
     $24::jsonb, $25, $26, $26 = 'memory')`,
);

export async function getRecord(
  on: Queryable,
  { uuid, region }: SandboxId,
  projectId: string,
): Promise<RecordRow | undefined> {
  return first(on, GET, [uuid, projectId, region]);
}

export async function getFacts(
  on: Queryable,
  { uuid, region }: SandboxId,
  projectId: string,
): Promise<(SandboxFacts & { id: string; region: string }) | undefined> {
  return first(on, FACTS, [uuid, projectId, region]);
}

export interface NewSandbox {
  /** New ones when absent. */
  id?: string;
  jobId?: string;
  sandbox: ResolvedSandbox;
  name: string;
  projectId: string;
  region: string;
  arch: string;
  root: ResolvedRoot;
  /** Placeholders: their variables come over those of `sandbox.env`. */
  secrets?: Minted;
  desired: DesiredState;
  accessTokenHash: Buffer;
  /** How long it may wait for a host, in milliseconds. */
  pendingMs: number;
  /** What it begins with instead of an empty disk. */
  origin?: Extract<Origin, { type: 'snapshot' }>;
}

export async function insertSandbox(
  on: Queryable,
  create: NewSandbox,
): Promise<{ id: string; jobId: string }> {
  const { id = newUuid(), jobId = newUuid(), sandbox } = create;
  await all(on, INSERT, [
    id,
    jobId,
    create.projectId,
    create.name,
    create.region,
    create.desired,
    create.pendingMs,
    sandbox.mode,
    sandbox.cpu,
    sandbox.vcpus,
    sandbox.mem_mib,
    sandbox.scratch_mib,
    sandbox.gpu_host,
    sandbox.docker_data_mib,
    JSON.stringify(sandbox.ports),
    JSON.stringify({ ...sandbox.env, ...create.secrets?.env }),
    sandbox.egress_policy === null ? null : JSON.stringify(sandbox.egress_policy),
    sandbox.persistent,
    sandbox.spot,
    create.arch,
    create.root.imageRef,
    JSON.stringify(create.root.root),
    create.accessTokenHash,
    create.origin === undefined ? null : JSON.stringify(create.origin),
    create.origin?.snapshot_id ?? null,
    create.origin?.kind === 'full' ? 'memory' : 'disk',
    JSON.stringify(create.secrets?.rows ?? []),
  ]);
  return { id, jobId };
}

export async function listRecords(
  database: Database,
  projectId: string,
  limit: number,
  after: { created_at: string; id: string } | null,
): Promise<{ rows: RecordRow[]; last: { created_at: string; id: string } | null }> {
  const rows =
    after === null
      ? await all(database.pool, FIRST_PAGE, [projectId, limit + 1])
      : await all(database.pool, NEXT_PAGE, [projectId, limit + 1, after.created_at, after.id]);
  const page = rows.slice(0, limit);
  const last = rows.length > limit ? page.at(-1) : undefined;
  return { rows: page, last: last === undefined ? null : { created_at: last.position, id: last.id } };
}

/** The public record, as lists show it. */
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
  };
  if (row.manifest_name !== null) record.manifest_name = row.manifest_name;
  if (row.runner_id !== null) record.runner_id = row.runner_id;
  if (row.vm_ip !== null) record.vm_ip = row.vm_ip;
  if (row.host_ip !== null) record.host_ip = row.host_ip;
  return record;
}

/** The same with what only a single read shows. */
export function toDetail(row: RecordRow): SandboxRecord {
  const source = row.forked_from;
  return { ...toRecord(row), forked_from: source === null ? null : formatSandboxId(row.region, source) };
}
