/**
 * Snapshots of the facade, which creates start from: images of the project, built-in images, and disk snapshots that were
 * captured with the API. Those that the facade has created are images with a row in `compat_snapshots`.
 */
import {
  COMPAT_DEFAULTS,
  isUuid,
  type CompatSnapshot,
  type CompatSnapshotListQuery,
  type CompatSnapshotState,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Database, type Statement } from '@releap/database';
import { IS_LISTED } from '../../storage/images/function-images.ts';
import { buildInfo } from './sandbox-record.ts';

export interface CompatSnapshotRow {
  id: string;
  kind: 'image' | 'captured';
  name: string;
  general: boolean;
  state: CompatSnapshotState;
  error: string | null;
  /** A bigint, which the driver gives as text. */
  bytes: string | null;
  region: string | null;
  manifest_name: string | null;
  /** Of an image that was built or pulled for the project. */
  job_id: string | null;
  dockerfile: string | null;
  image_name: string | null;
  entrypoint: string[] | null;
  cpu: number | null;
  memory: number | null;
  disk: number | null;
  created_at: Date;
  updated_at: Date;
}

const MADE = `(i.source ->> 'type' = 'dockerfile' or i.docker)`;

/** $1 project */
const SNAPSHOTS = `(
  select i.id, 'image' as kind, coalesce(c.name, i.name) as name, i.project_id is null as general,
         case when i.status = 'ready' then 'active'
              when i.status = 'failed' then case when ${MADE} then 'build_failed' else 'error' end
              when j.status = 'running' then case when ${MADE} then 'building' else 'pulling' end
              else 'pending' end as state,
         i.error, i.bytes, i.region, i.manifest_name,
         case when i.project_id is null then null else i.job_id end as job_id,
         i.source ->> 'dockerfile' as dockerfile, coalesce(c.image_name, i.source ->> 'ref') as image_name,
         c.entrypoint, c.cpu, c.memory, c.disk, i.created_at, i.updated_at
    from images i left join compat_snapshots c on c.image_id = i.id left join jobs j on j.id = i.job_id
   where (i.project_id = $1 and ${IS_LISTED('i')}) or (i.project_id is null and not exists (
           select 1 from images mine where mine.project_id = $1 and mine.name = i.name))
  union all
  select id, 'captured', name, false, case status when 'ready' then 'active' when 'failed' then 'error' else 'pending' end,
         error, disk_bytes, region, manifest_name, null, null, spec ->> 'image_ref', null, cpu, mem_mib / 1024.0,
         scratch_mib / 1024.0, created_at, updated_at
    from snapshots where project_id = $1 and kind = 'disk' and status <> 'deleted') s`;

/** By id, else by name; of several with the name, the one that a create takes. $1 project, $2 id (null: none), $3 name */
const FIND = statement<CompatSnapshotRow>(
  'compat-snapshot-find',
  `select s.* from ${SNAPSHOTS} where s.id = $2 or s.name = $3
    order by s.id = $2 desc nulls last, s.cpu is not null desc, s.general, s.created_at desc limit 1`,
);

export function findSnapshot(
  { pool }: Pick<Database, 'pool'>,
  projectId: string,
  idOrName: string,
): Promise<CompatSnapshotRow | undefined> {
  return queryOne(pool, FIND, [projectId, isUuid(idOrName) ? idOrName : null, idOrName]);
}

const SORTS = { name: 'name', state: 'state', lastUsedAt: 'updated_at', createdAt: 'created_at' } as const;

/** Part of the name, in any case. $1 project, $2 text (null: any), $3 rows, $4 offset */
function pageStatement(sort: keyof typeof SORTS, order: 'asc' | 'desc'): Statement<CompatSnapshotRow> {
  return statement<CompatSnapshotRow>(
    `compat-snapshots-${sort}-${order}`,
    `select s.* from ${SNAPSHOTS} where ${MATCHES} order by s.${SORTS[sort]} ${order}, s.id ${order} limit $3 offset $4`,
  );
}
const MATCHES = `($2::text is null or strpos(lower(s.name), lower($2)) > 0)`;
const COUNT = statement<{ total: number }>(
  'compat-snapshots-count',
  `select count(*)::integer as total from ${SNAPSHOTS} where ${MATCHES}`,
);

export async function listSnapshots(
  { pool }: Pick<Database, 'pool'>,
  projectId: string,
  query: CompatSnapshotListQuery & { page: number; limit: number },
): Promise<{ rows: CompatSnapshotRow[]; total: number }> {
  const { page, limit, sort = 'createdAt', order = 'desc' } = query;
  const name = query.name ?? null;
  const [rows, counted] = await Promise.all([
    queryAll(pool, pageStatement(sort, order), [projectId, name, limit, (page - 1) * limit]),
    queryOne(pool, COUNT, [projectId, name]),
  ]);
  return { rows, total: counted?.total ?? 0 };
}

const GIB = 1024 ** 3;

export function toSnapshot(row: CompatSnapshotRow, orgId: string): CompatSnapshot {
  return {
    id: row.id,
    organizationId: orgId,
    general: row.general,
    name: row.name,
    ...(row.image_name === null ? {} : { imageName: row.image_name }),
    state: row.state,
    size: row.bytes === null ? null : Number(row.bytes) / GIB,
    entrypoint: row.entrypoint,
    cpu: row.cpu ?? COMPAT_DEFAULTS.cpu,
    gpu: 0,
    mem: row.memory ?? COMPAT_DEFAULTS.memoryGib,
    disk: row.disk ?? COMPAT_DEFAULTS.diskGib,
    errorReason: row.error,
    createdAt: row.created_at.toISOString(),
    updatedAt: row.updated_at.toISOString(),
    lastUsedAt: null,
    ...(row.dockerfile === null ? {} : { buildInfo: buildInfo(row.dockerfile, row) }),
    ...(row.region === null ? {} : { regionIds: [row.region] }),
    ...(row.manifest_name === null ? {} : { ref: row.manifest_name }),
    sandboxClass: 'linux-vm',
  };
}
