import { formatSandboxId, type CursorPosition, type SnapshotRecord } from '@releap/contract';
import {
  columns,
  queryOne,
  SNAPSHOT_COLUMNS,
  statement,
  type Database,
  type Environment,
  type Queryable,
  type SnapshotRow,
  type StoredSpec,
} from '@releap/database';
import { newestFirst } from '../../platform/newest-first.ts';

/** The columns of a public record. */
const RECORD = [
  'id',
  'name',
  'kind',
  'status',
  'error',
  'no_changes',
  'parent_id',
  'sandbox_id',
  'region',
  'mem_mib',
  'scratch_mib',
  'manifest_name',
  'disk_bytes',
  'artifact_ref',
  'fc_version',
  'cpu_marker',
  'mem_bytes',
  'runner_id',
  'created_at',
  'updated_at',
] as const satisfies readonly (keyof SnapshotRow)[];
type RecordRow = Pick<SnapshotRow, (typeof RECORD)[number]> & {
  spec: Pick<StoredSpec, 'image_ref' | 'vcpus'>;
};
const RECORD_SQL = `${RECORD.join(', ')}, jsonb_build_object('image_ref', spec -> 'image_ref', 'vcpus', spec -> 'vcpus') as spec`;
const ROW = columns('s', SNAPSHOT_COLUMNS);

const GET = statement<RecordRow>(
  'snapshot-get',
  `select ${RECORD_SQL} from snapshots where id = $1 and project_id = $2 and owner_service is null and status <> 'deleted'`,
);
const BY_NAME = statement<SnapshotRow>(
  'snapshot-by-name',
  `select ${ROW} from snapshots s where name = $1 and project_id = $2 and owner_service is null and status <> 'deleted'`,
);
/** Locks it against changes until the end of the transaction. */
const KEEP = statement<SnapshotRow>(
  'snapshot-keep',
  `select ${ROW} from snapshots s where id = $1 for key share`,
);

const ENV = statement<{ env: Environment }>(
  'snapshot-env',
  'select env from snapshot_env where snapshot_id = $1',
);

const LIST = newestFirst<RecordRow>('snapshot-list', {
  columns: RECORD_SQL,
  from: 'snapshots',
  where: `project_id = $1 and owner_service is null and status <> 'deleted'`,
  parameters: 1,
});

export function getSnapshot(on: Queryable, id: string, projectId: string): Promise<RecordRow | undefined> {
  return queryOne(on, GET, [id, projectId]);
}

export function snapshotByName(
  on: Queryable,
  name: string,
  projectId: string,
): Promise<SnapshotRow | undefined> {
  return queryOne(on, BY_NAME, [name, projectId]);
}

/** The sandbox's newest snapshot, locked against deletion until the end of the transaction. */
export function keepSnapshot(on: Queryable, id: string): Promise<SnapshotRow | undefined> {
  return queryOne(on, KEEP, [id]);
}

/** The environment of a full snapshot. */
export async function snapshotEnvironment(
  on: Queryable,
  { id, env_bytes }: SnapshotRow,
): Promise<Environment> {
  return env_bytes === 0 ? {} : ((await queryOne(on, ENV, [id]))?.env ?? {});
}

export async function listSnapshots(
  database: Database,
  projectId: string,
  limit: number,
  after: CursorPosition | null,
): Promise<{ snapshots: SnapshotRecord[]; last: CursorPosition | null }> {
  const { rows, last } = await LIST.page(database.pool, [projectId], limit, after);
  return {
    snapshots: rows.map(toSnapshotRecord),
    last,
  };
}

/** The public record. */
export function toSnapshotRecord(row: RecordRow): SnapshotRecord {
  if (row.status === 'deleted') throw new Error(`snapshot ${row.id} is deleted and must not be shown`);
  const { manifest_name, disk_bytes, artifact_ref, fc_version, cpu_marker, mem_bytes } = row;
  return {
    id: row.id,
    name: row.name,
    kind: row.kind,
    status: row.status,
    error: row.error,
    no_changes: row.no_changes,
    parent_id: row.parent_id,
    sandbox_id: formatSandboxId(row.region, row.sandbox_id),
    region: row.region,
    image_ref: row.spec.image_ref,
    vcpus: row.spec.vcpus,
    mem_mib: row.mem_mib,
    scratch_mib: row.scratch_mib,
    ...(manifest_name === null ? {} : { manifest_name }),
    ...(disk_bytes === null ? {} : { disk_bytes: Number(disk_bytes) }),
    ...(row.kind === 'full'
      ? {
          ...(artifact_ref === null ? {} : { artifact_ref }),
          ...(fc_version === null ? {} : { fc_version }),
          ...(cpu_marker === null ? {} : { cpu_marker }),
          ...(mem_bytes === null ? {} : { mem_bytes: Number(mem_bytes) }),
          runner_id: row.runner_id,
        }
      : {}),
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}
