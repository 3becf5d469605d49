/**
 * The only insert of sandboxes: for creates, restores and forks, and for services that need internal sandboxes. The
 * caller handles idempotency, admission to the create queue and placement rules.
 */
import {
  tokenDigest,
  type Origin,
  type ResolvedSandbox,
  type Resources,
  type RootSource,
} from '@releap/contract';
import {
  columns,
  queryOne,
  SANDBOX_COLUMNS,
  statement,
  type Environment,
  type Queryable,
  type SandboxRow,
  type SnapshotRow,
  type StoredSpec,
} from '@releap/database';
import { traceContext } from '@releap/tracing';
import { asQuotaRefusal } from '../../platform/quotas/quota-refusal.ts';
import { pinned } from './assignment.ts';
import type { Minted } from '../../storage/secrets/placeholders.ts';
import { CREATIONS, type CreationName } from './transitions.ts';

/** The owner. Tenants list and reach sandboxes that their project owns, not those that a service owns in it. */
export type Owner =
  | { kind: 'project'; projectId: string }
  | { kind: 'service'; service: string; projectId: string };

/** Resolved: without defaults or references to look up. */
export interface NewSandboxSpec
  extends Resources,
    Pick<
      ResolvedSandbox,
      'gpu_host' | 'docker_data_mib' | 'ports' | 'egress_policy' | 'persistent' | 'spot' | 'env'
    > {
  name: string;
  region: string;
  cpu_arch: string;
  root: RootSource;
  /** The requested image. */
  image_ref: string;
  /** Runs instead of the entrypoint and command of the image. */
  entrypoint?: string[];
  /** Runs its processes instead of the user of the image. */
  user?: string | undefined;
  /** How many volumes it has; the caller writes these (`insertAttachments`). None when absent. */
  volumeCount?: number;
  /** The one host that it may run on. */
  required_runner_id?: string;
  /** Slugs of the classes of hardware that it asks for, by kind. */
  classes?: StoredSpec['classes'];
}

/** Where memory and disk come from. */
export type Source =
  /** The root image, and an empty disk. */
  | { kind: 'image' }
  | { kind: 'snapshot'; snapshot: Pick<SnapshotRow, 'id' | 'kind' | 'sandbox_id'> }
  /** Memory and disk of a running or paused sandbox, on its host. The caller has locked it. */
  | { kind: 'fork'; from: SandboxRow };

export interface NewIds {
  id: string;
  jobId: string;
  accessToken: string;
}

export interface CreateSandbox {
  owner: Owner;
  spec: NewSandboxSpec;
  source: Source;
  ids: NewIds;
  /** Placeholders that its environment gets. */
  secrets?: Minted;
  /** How long it may stay in its first status, in milliseconds. */
  deadlineMs: number;
}

/** Sandbox, job, placeholders, environment and desired state: one statement, so one transaction. */
const insert = (name: string, returning: string) =>
  statement<SandboxRow>(
    name,
    `with job as (
       insert into jobs (id, project_id, kind, status, attempts, runner_id, sandbox_id)
       values ($2, $3, 'vm.create', case when $24::uuid is null then 'queued' else 'running' end,
               case when $24::uuid is null then 0 else 1 end, $24, $1)
     ), attached as (
       insert into sandbox_secrets (sandbox_id, placeholder_hash, secret_id, name)
       select $1::uuid, decode(t.hash, 'hex'), t.secret_id, t.name
         from jsonb_to_recordset($4::jsonb) as t(secret_id uuid, name text, hash text)
     ), environment as (
       insert into sandbox_env (sandbox_id, env) select $1::uuid, $5::jsonb where $5::jsonb is not null
     )
     insert into sandboxes as s (id, job_id, project_id, env_bytes, owner_kind, owner_service, region, status, desired, deadline_at,
       mode, cpu, mem_mib, scratch_mib, gpu_host, docker_data_mib, persistent, spot, cpu_arch, spec, access_token_hash,
       parent_snapshot_id, start_from, has_memory, runner_id, held, forked_from, volume_count)
     values ($1, $2, $3, $6, $7, $8, $9, $10, $11, now() + $12 * interval '1 millisecond',
       $13, $14, $15, $16, $17, $18, $19, $20, $21, $22::jsonb, $23,
       $25, $26, $27, $24, $24::uuid is not null, $28, $29)
     returning ${returning}`,
  );
const INSERT = insert('sandbox-insert', 's.id');
/** For a sandbox that is placed already: notifies its runner. */
const INSERT_PLACED = insert('sandbox-insert-placed', columns('s', SANDBOX_COLUMNS));

/**
 * Inserts a new sandbox, placed or to be placed.
 * @throws 429 when a quota of its organization would be exceeded
 * @param on for a snapshot or a fork: a transaction of the caller's, which keeps the snapshot from deletion
 *   (`keepSnapshot`) or has locked the source, and has copied its secrets (`copySecrets`) into `spec.env`
 * @returns its row when it is already placed (a fork): announce it after the commit
 */
export async function createSandbox(
  on: Queryable,
  { owner, spec, source, ids, secrets, deadlineMs }: CreateSandbox,
): Promise<SandboxRow | undefined> {
  const initial = CREATIONS[creationOf(source)];
  const env: Environment = { ...spec.env, ...secrets?.env };
  const json = Object.keys(env).length === 0 ? null : JSON.stringify(env);
  const runnerId = source.kind === 'fork' ? source.from.runner_id : null;
  const written = await queryOne(on, runnerId === null ? INSERT : INSERT_PLACED, [
    ids.id,
    ids.jobId,
    owner.projectId,
    JSON.stringify(secrets?.rows ?? []),
    json,
    json === null ? 0 : Buffer.byteLength(json),
    owner.kind,
    owner.kind === 'service' ? owner.service : null,
    spec.region,
    initial.status,
    initial.desired,
    deadlineMs,
    spec.mode,
    spec.cpu,
    spec.mem_mib,
    spec.scratch_mib,
    spec.gpu_host,
    spec.docker_data_mib,
    spec.persistent,
    spec.spot,
    spec.cpu_arch,
    JSON.stringify(stored(spec, originOf(source))),
    tokenDigest(ids.accessToken),
    runnerId,
    source.kind === 'snapshot' ? source.snapshot.id : null,
    initial.start_from,
    initial.has_memory,
    source.kind === 'fork' ? source.from.id : null,
    spec.volumeCount ?? 0,
  ]).catch((error: unknown) => Promise.reject((asQuotaRefusal(error) ?? error) as Error));
  return runnerId === null ? undefined : written;
}

function creationOf(source: Source): CreationName {
  if (source.kind === 'fork') return source.from.status === 'paused' ? 'pausedSource' : 'runningSource';
  return source.kind === 'snapshot' && source.snapshot.kind === 'full' ? 'fullSnapshot' : 'image';
}

function originOf(source: Source): Origin | null {
  if (source.kind === 'image') return null;
  return source.kind === 'fork'
    ? { type: 'fork', vm_id: source.from.id }
    : { type: 'snapshot', snapshot_id: source.snapshot.id, kind: source.snapshot.kind };
}

function stored(spec: NewSandboxSpec, origin: Origin | null): StoredSpec {
  const {
    name,
    vcpus,
    ports,
    egress_policy,
    image_ref,
    root,
    entrypoint,
    user,
    required_runner_id,
    classes = {},
  } = spec;
  return {
    version: 1,
    name,
    vcpus,
    ports,
    egress_policy,
    image_ref,
    root,
    origin,
    ...(entrypoint === undefined ? {} : { entrypoint }),
    ...(user === undefined ? {} : { user }),
    ...(required_runner_id === undefined ? {} : { required_runner_id }),
    ...(Object.keys(classes).length === 0 ? {} : { classes }),
    ...traceContext(),
  };
}

/** The spec of a copy of this sandbox, with the given environment and name. */
export function specOfCopy(row: SandboxRow, name: string, env: Environment): NewSandboxSpec {
  const { region, mode, cpu, mem_mib, scratch_mib, gpu_host, docker_data_mib, persistent, spot, cpu_arch } =
    row;
  const sizes = { mode, cpu, vcpus: row.spec.vcpus, mem_mib, scratch_mib };
  const { ports, egress_policy, image_ref, classes } = row.spec;
  const root = pinned(row);
  // biome-ignore format: one thing
  return { ...sizes, name, region, cpu_arch, gpu_host, docker_data_mib, ports, egress_policy, persistent, spot, env, root, image_ref, classes };
}
