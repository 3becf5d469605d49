/** Volumes of a project: their records. */
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import {
  BOUNDS,
  conflict,
  quote,
  resolveVolumeCreate,
  volumeNotFound,
  type VolumeConflict,
  type VolumeCreateRequest,
  type VolumeDeleteResponse,
  type VolumeDetail,
  type VolumeList,
  type VolumeRecord,
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
import { DELETE_COPIES } from './copy-statements.ts';

export interface Volumes {
  /** @throws 400, 409 */
  create(project: ProjectScope, body: VolumeCreateRequest, ids: IdGenerator): Promise<VolumeRecord>;
  list(projectId: string, query: NamedListQuery): Promise<VolumeList>;
  /** @throws 400 for a text that is the id of one volume and the name of another, 404 */
  get(projectId: string, idOrName: string): Promise<VolumeDetail>;
  /** @throws like `get`, 409 while it is attached */
  remove(project: ProjectScope, idOrName: string): Promise<VolumeDeleteResponse>;
}

interface VolumeRow {
  id: string;
  name: string;
  type: VolumeRecord['type'];
  size_gb: number;
  created_at: Date;
  updated_at: Date;
  deleted_at: Date | null;
  last_used_at: Date | null;
  used_bytes: string | null;
  used_bytes_at: Date | null;
  /** A host whose changes are not committed, and why. */
  trouble: { runner_id: string; lost: boolean; since: string | null; error: string | null } | null;
}

/** Of the table `volumes v`. The host that has had uncommitted changes for the longest time comes first. */
const COLUMNS = `v.id, v.name, v.type, v.size_gb, v.created_at, v.updated_at, v.deleted_at, v.last_used_at, v.used_bytes, v.used_bytes_at,
  (select jsonb_build_object('runner_id', c.runner_id, 'lost', r.status = 'lost', 'error', c.error,
            'since', to_char(c.dirty_since at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
     from volume_copies c join runners r on r.id = c.runner_id
    where c.volume_id = v.id and v.deleted_at is null
      and (c.error is not null or (c.dirty_since is not null and r.status = 'lost'))
    order by c.dirty_since, c.runner_id limit 1) as trouble`;

/** $1 id, $2 project, $3 name, $4 type, $5 size, $6 most volumes a project may have */
const INSERT = statement<{ id: string }>(
  'volume-insert',
  `insert into volumes (id, project_id, name, type, size_gb)
   select $1::uuid, $2::uuid, $3, $4, $5::integer
    where (select count(*) from volumes where project_id = $2 and deleted_at is null) < $6::integer
   returning id`,
);

/** $1 id, $2 project */
const BY_ID = statement<VolumeRow>(
  'volume-by-id',
  `select ${COLUMNS} from volumes v where v.id = $1 and v.project_id = $2`,
);

const listVolumes = namedLists<VolumeRow>('volume', LIST_CURSORS.volumes, {
  columns: COLUMNS,
  from: 'volumes v',
});

/** $1 project, $2 id (null: none), $3 name */
const FIND = statement<FoundVolume>(
  'volume-find',
  `select id, name, head from volumes where project_id = $1 and deleted_at is null and (id = $2 or name = $3)`,
);

/** $1 volume */
const LAST_MANIFEST = statement<{ id: string }>(
  'volume-last-manifest',
  'select m.id from volumes v join volume_manifests m on m.volume_id = v.id and m.number = v.head where v.id = $1',
);

interface ConflictRow extends Omit<VolumeConflict, 'created_at' | 'manifest_id'> {
  manifest_id: string | null;
  created_at: Date;
}

/** $1 volume, $2 rows */
const CONFLICTS = statement<ConflictRow>(
  'volume-conflicts',
  `select c.path, c.kept_as, c.kind, m.id as manifest_id, c.runner_id, c.created_at
     from volume_conflicts c left join volume_manifests m on m.volume_id = c.volume_id and m.number = c.number
    where c.volume_id = $1 order by c.id desc limit $2`,
);
const SHOWN_CONFLICTS = 100;

/** Locks it, so that nothing is attached before its deletion is written. $1 id */
export const LOCK = statement<{ head: number }>(
  'volume-lock',
  'select head from volumes where id = $1 and deleted_at is null for update',
);

/**
 * A sandbox that has it attached; one that is being deleted may still be writing to it, one that has failed and is not persistent never
 * runs again. $1 id
 */
const ATTACHED = statement<{ name: string }>(
  'volume-attached',
  `select s.name from volume_attachments a join sandbox_states s on s.id = a.sandbox_id
    where a.volume_id = $1 and s.status <> 'deleted' and (s.desired <> 'deleted' or s.status = 'deleting')
      and (s.persistent or s.status <> 'failed')
    order by s.created_at limit 1`,
);

/** $1 id */
const RETIRE = statement(
  'volume-retire',
  `update volumes set name = name || '-deleted', deleted_at = now(), updated_at = now() where id = $1`,
);

const VOLUME: NamedResource<VolumeRow> = {
  kind: 'volume',
  one: 'a volume',
  many: 'volumes',
  most: BOUNDS.volumesPerProject,
  nameIndex: 'volumes_by_name',
  byId: BY_ID,
};

export interface VolumesOptions {
  database: Database;
  /** Hosts are to remove their copies. */
  onCopiesChanged: (changes: readonly AssignmentChange[]) => void;
}

export function createVolumes({ database, onCopiesChanged }: VolumesOptions): Volumes {
  return {
    async create(project, body, ids) {
      const { name, type, size_gb } = resolveVolumeCreate(body);
      const row = await insertNamed(database, VOLUME, { project, name, ids }, async (on, id) => {
        const values = [id, project.id, name, type, size_gb, VOLUME.most];
        const inserted = await queryOne(on, INSERT, values);
        return inserted === undefined ? undefined : queryOne(on, BY_ID, [id, project.id]);
      });
      return toRecord(row);
    },
    async list(projectId, query) {
      const { rows, next } = await listVolumes(database.pool, projectId, query);
      return { volumes: rows.map(toRecord), ...next };
    },
    async get(projectId, idOrName) {
      const { id } = await findVolume(database.pool, projectId, idOrName);
      const [row, last, conflicts] = await Promise.all([
        queryOne(database.pool, BY_ID, [id, projectId]),
        queryOne(database.pool, LAST_MANIFEST, [id]),
        queryAll(database.pool, CONFLICTS, [id, SHOWN_CONFLICTS]),
      ]);
      if (row === undefined || row.deleted_at !== null) throw volumeNotFound(idOrName);
      return {
        ...toRecord(row),
        ...(last === undefined ? {} : { last_manifest_id: last.id }),
        conflicts: conflicts.map(({ manifest_id, created_at, ...one }) => ({
          ...one,
          ...(manifest_id === null ? {} : { manifest_id }),
          created_at: created_at.toISOString(),
        })),
      };
    },
    async remove(project, idOrName) {
      const { id, name } = await findVolume(database.pool, project.id, idOrName);
      const changes = await database.transaction(async (on) => {
        if ((await queryOne(on, LOCK, [id])) === undefined) throw volumeNotFound(idOrName);
        const sandbox = await queryOne(on, ATTACHED, [id]);
        if (sandbox !== undefined)
          throw conflict(
            `volume ${quote(name)} is attached to sandbox ${quote(sandbox.name)}: delete the sandbox first`,
            'in_use',
          );
        await queryAll(on, RETIRE, [id]);
        await project.audit('volume.delete', { kind: 'volume', id })?.(on);
        return queryAll(on, DELETE_COPIES, [[id]]);
      });
      onCopiesChanged(changes);
      return { id, state: 'deleted' };
    },
  };
}

export interface FoundVolume {
  id: string;
  name: string;
  /** Number of its newest manifest; 0 for none. */
  head: number;
}

/** @throws 400 for a text that is the id of one volume and the name of another, 404 */
export function findVolume(on: Queryable, projectId: string, idOrName: string): Promise<FoundVolume> {
  return findByRef(on, { find: FIND, noun: 'volume', notFound: volumeNotFound }, projectId, idOrName);
}

function toRecord(row: VolumeRow): VolumeRecord {
  const { id, name, type, size_gb, deleted_at, last_used_at, used_bytes, used_bytes_at, trouble } = row;
  return {
    id,
    name,
    type,
    size_gb,
    state: deleted_at === null ? 'ready' : 'deleted',
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
    ...(last_used_at === null ? {} : { last_used_at: last_used_at.toISOString() }),
    ...(used_bytes === null ? {} : { used_bytes: Number(used_bytes) }),
    ...(used_bytes_at === null ? {} : { used_bytes_at: used_bytes_at.toISOString() }),
    ...(trouble === null ? {} : { error_reason: reasonOf(trouble) }),
  };
}

function reasonOf({ runner_id, lost, since, error }: NonNullable<VolumeRow['trouble']>): string {
  const changes = since === null ? '' : `; its changes since ${since} are not committed`;
  if (lost) return `the host ${runner_id} is lost${changes}${error === null ? '' : ` (${error})`}`;
  return `the host ${runner_id} reports: ${error ?? ''}${changes}`;
}
