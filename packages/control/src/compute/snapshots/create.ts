import {
  checkSnapshotName,
  conflict,
  quote,
  sandboxNotFound,
  type SnapshotCreateRequest,
  type SnapshotCreateResponse,
  type SnapshotKind,
} from '@releap/contract';
import {
  queryAll,
  columns,
  queryOne,
  isUniqueViolation,
  SANDBOX_COLUMNS,
  SNAPSHOT_COLUMNS,
  statement,
  type Database,
  type Queryable,
  type SandboxRow,
  type SnapshotRow,
} from '@releap/database';
import { RANDOM, type IdGenerator } from '../../platform/idempotency/id-generator.ts';
import { pinned } from '../sandboxes/assignment.ts';
import { readSandboxId } from '../sandboxes/change.ts';
import { REACHABLE } from '../sandboxes/queries.ts';
import { CONDITIONS, type ConditionName } from '../sandboxes/transitions.ts';
import { keepSnapshot, toSnapshotRecord } from './queries.ts';
import type { Snapshots } from './snapshots.ts';

export interface SnapshotContext {
  database: Database;
  snapshots: Snapshots;
  limits: { snapshotDeadlineMs: number };
}

/** Serializes the inserts of one sandbox's snapshots. */
const SANDBOX = statement<SandboxRow>(
  'snapshot-sandbox',
  `select ${columns('s', SANDBOX_COLUMNS)} from sandboxes s where id = $1 and ${REACHABLE('$2', '$3', 's')} for no key update`,
);

/** Inserts a snapshot with its job and, if full, the environment. It is taken at once if no other of this sandbox is. */
const INSERT = statement<SnapshotRow>(
  'snapshot-insert',
  `with turn as (
     select not exists (select 1 from snapshots where sandbox_id = $5 and status = 'pending') as now
   ), job as (
     insert into jobs (id, project_id, kind, status, attempts, runner_id, sandbox_id)
     select $2, $3, 'snapshot.create', case when now then 'running' else 'queued' end, now::integer,
            case when now then $7::uuid end, $5 from turn
   ), environment as (
     insert into snapshot_env (snapshot_id, env) select $1, e.env from sandbox_env e where e.sandbox_id = $5 and $6 = 'full'
   )
   insert into snapshots as s (id, job_id, project_id, name, sandbox_id, kind, runner_id, parent_id, status, desired, held, deadline_at, owner_service,
     spec, env_bytes, manifest_name, region, mode, cpu, mem_mib, scratch_mib, cpu_arch)
   select $1, $2, $3, $4, $5, $6, $7, $8, 'pending', 'ready', turn.now, now() + $9 * interval '1 millisecond', $11,
          b.spec || jsonb_build_object('root', $10::jsonb, 'name', null, 'origin', null),
          case when $6 = 'full' then b.env_bytes else 0 end, b.manifest_name, b.region, b.mode, b.cpu, b.mem_mib, b.scratch_mib,
          b.cpu_arch
     from sandboxes b, turn where b.id = $5
   returning ${columns('s', SNAPSHOT_COLUMNS)}`,
);

/** The snapshot that an interrupted earlier attempt inserted. */
const MADE = statement<SnapshotRow>(
  'snapshot-made',
  `select ${columns('s', SNAPSHOT_COLUMNS)} from snapshots s where id = $1 and project_id = $2`,
);

/** Conditions of a full snapshot: the sandbox must be resumable. */
const RESUMABLE: readonly ConditionName[] = ['persistent', 'noVolumes', 'noDockerData', 'noGpus'];

/** Why a snapshot of this kind is impossible, as the end of a sentence. */
export function snapshotRefusal(sandbox: SandboxRow, kind: SnapshotKind): string | undefined {
  // Permanent reasons first.
  if (kind === 'disk' && sandbox.persistent) return 'a persistent sandbox needs a snapshot of kind "full"';
  const lacking = RESUMABLE.find((name) => kind === 'full' && !CONDITIONS[name].holds(sandbox));
  if (lacking !== undefined) {
    const { otherwise } = CONDITIONS[lacking];
    const why = typeof otherwise === 'string' ? otherwise : otherwise(sandbox);
    return `a full snapshot of it could not be resumed: ${why}`;
  }
  if (sandbox.status === 'pending') return 'it is pending and not yet placed on a host, and must be running';
  if (sandbox.status !== 'running') return `it is ${sandbox.status}, and must be running`;
  if (sandbox.runner_id === null) return 'it is not yet placed on a host';
  if (sandbox.manifest_name === null) return 'it has no image manifest yet';
  return undefined;
}

export interface NewSnapshot {
  id: string;
  jobId: string;
  name: string;
  /** Locked by the caller, in a state of which a snapshot can be taken (`snapshotRefusal`). */
  sandbox: SandboxRow;
  kind: SnapshotKind;
  /** The part of the service that owns it; null: the project. */
  ownerService: string | null;
  deadlineMs: number;
}

/** The only insert of snapshots: announce the row after the commit. @throws a unique violation when the name is taken */
export async function insertSnapshot(
  client: Queryable,
  { id, jobId, name, sandbox, kind, ownerService, deadlineMs }: NewSnapshot,
): Promise<SnapshotRow> {
  const parent =
    sandbox.parent_snapshot_id === null ? undefined : await keepSnapshot(client, sandbox.parent_snapshot_id);
  const [inserted] = await queryAll(client, INSERT, [
    id,
    jobId,
    sandbox.project_id,
    name,
    sandbox.id,
    kind,
    sandbox.runner_id,
    parent?.status === 'ready' ? parent.id : null,
    deadlineMs,
    JSON.stringify(pinned(sandbox)),
    ownerService,
  ]);
  if (inserted === undefined) throw new Error('the snapshot was not written');
  return inserted;
}

/** `POST /vms/:id/snapshots`: validates and inserts, under a lock of the sandbox. */
export async function createSnapshot(
  { database, snapshots, limits }: SnapshotContext,
  shownId: string,
  projectId: string,
  body: SnapshotCreateRequest,
  ids: IdGenerator = RANDOM,
): Promise<SnapshotCreateResponse> {
  const generated = { id: ids.uuid(), jobId: ids.uuid() };
  const name = checkSnapshotName(body.name);
  const kind = body.kind ?? 'disk';
  const { uuid: id, region } = readSandboxId(shownId);
  if (ids.retried) {
    const made = await queryOne(database.pool, MADE, [generated.id, projectId]);
    if (made !== undefined) return { ...toSnapshotRecord(made), job_id: made.job_id };
  }
  const row = await database
    .transaction(async (client) => {
      const sandbox = await queryOne(client, SANDBOX, [id, projectId, region]);
      if (sandbox === undefined) throw sandboxNotFound(shownId);
      const why = snapshotRefusal(sandbox, kind);
      if (why !== undefined)
        throw conflict(
          `no ${kind} snapshot can be taken of sandbox ${quote(shownId)}: ${why}`,
          'wrong_state',
        );
      return insertSnapshot(client, {
        ...generated,
        name,
        sandbox,
        kind,
        ownerService: null,
        deadlineMs: limits.snapshotDeadlineMs,
      });
    })
    .catch((error: unknown) => {
      if (!isUniqueViolation(error, 'snapshots_by_name')) throw error;
      throw conflict(
        `a snapshot named ${quote(name)} exists in this project: use another name, or delete it first`,
        'name_exists',
      );
    });
  snapshots.announce([row]);
  return { ...toSnapshotRecord(row), job_id: row.job_id };
}
