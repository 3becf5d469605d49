/** The commits of a volume: listing them, and making the tree of an older one the newest again. */
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import {
  clampLimit,
  conflict,
  cursorPosition,
  isUuid,
  newUuid,
  nextCursor,
  notFound,
  quote,
  volumeNotFound,
  VOLUME_MANIFEST_CURSORS,
  type VolumeManifest,
  type VolumeManifestList,
  type CodeOf,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import type { ProjectScope } from '../../tenancy/management/project-scope.ts';
import { newestFirst } from '../../platform/newest-first.ts';
import { DROP_BLOBS, INSERT_MANIFEST } from './commits.ts';
import { TELL } from './copy-statements.ts';
import { MAY_WRITE } from './uncommitted.ts';
import { findVolume, LOCK } from './volumes.ts';

interface ManifestRow {
  id: string;
  number: number;
  reason: VolumeManifest['reason'];
  runner_id: string | null;
  restored_from: string | null;
  used_bytes: string;
  files: string;
  created_at: Date;
}

const LIST = newestFirst<ManifestRow>('volume-manifests', {
  columns: 'id, number, reason, runner_id, restored_from, used_bytes, files, created_at',
  from: 'volume_manifests',
  where: 'volume_id = $1',
  parameters: 1,
});

/** Locked, so that it is not removed before the end of the transaction. $1 volume, $2 manifest */
const SOURCE = statement<{ number: number; root: string; used_bytes: string; files: string }>(
  'volume-restore-source',
  'select number, root, used_bytes, files from volume_manifests where volume_id = $1 and id = $2 for update',
);
/** A sandbox that may write to it, or is about to. $1 volume */
const MOUNTED = statement<{ name: string }>(
  'volume-restore-mounted',
  `select s.name from volume_attachments a join sandbox_states s on s.id = a.sandbox_id
    where a.volume_id = $1 and (s.status in ${MAY_WRITE} or s.status in ('pending', 'assigned'))
    order by s.created_at limit 1`,
);
/** A host with changes that it may still commit. $1 volume */
const DIRTY = statement<{ runner_id: string }>(
  'volume-restore-dirty',
  `select c.runner_id from volume_copies c join runners r on r.id = c.runner_id
    where c.volume_id = $1 and c.dirty_since is not null and r.status <> 'lost' limit 1`,
);
/** Packs of the head that the source does not name. $1 volume, $2 number of the source */
const NOT_IN_SOURCE = statement<{ digest: string }>(
  'volume-restore-dropped',
  `select h.digest from volume_blobs h where h.volume_id = $1 and h.last is null
      and not exists (select 1 from volume_blobs b where b.volume_id = h.volume_id and b.digest = h.digest
                         and b.first <= $2 and (b.last is null or b.last >= $2))`,
);
/** $1 volume, $2 number of the source, $3 new number */
const ADD_SOURCE = statement(
  'volume-restore-add',
  `insert into volume_blobs (volume_id, digest, first)
   select distinct volume_id, digest, $3::integer from volume_blobs
    where volume_id = $1 and first <= $2 and (last is null or last >= $2)
   on conflict (volume_id, digest) where last is null do nothing`,
);
/** $1 volume, $2 number */
const ROOT = statement<{ root: string }>(
  'volume-restore-head',
  'select root from volume_manifests where volume_id = $1 and number = $2',
);

/** Newest first. @throws 400 for the cursor, and like `findVolume` */
export async function listManifests(
  database: Database,
  projectId: string,
  idOrName: string,
  query: { limit?: number; cursor?: string },
): Promise<VolumeManifestList> {
  const after = cursorPosition(VOLUME_MANIFEST_CURSORS, query.cursor);
  const { id } = await findVolume(database.pool, projectId, idOrName);
  const { rows, last } = await LIST.page(database.pool, [id], clampLimit(query.limit), after);
  return { manifests: rows.map(toManifest), next_cursor: nextCursor(VOLUME_MANIFEST_CURSORS, last) };
}

/**
 * Makes the tree of an older commit the newest: a new commit, so that this can be undone in the same way. Without effect when it is the
 * newest already.
 * @throws like `findVolume`; 404 for an unknown commit; 409 while a sandbox may write, or a host has changes to commit
 */
export async function restoreVolume(
  { database, onChanged }: { database: Database; onChanged: (changes: readonly AssignmentChange[]) => void },
  project: ProjectScope,
  idOrName: string,
  manifestId: string,
): Promise<void> {
  const { id, name } = await findVolume(database.pool, project.id, idOrName);
  const refuse = (why: string, code: CodeOf<409>): Error =>
    conflict(`volume ${quote(name)} cannot be restored: ${why}`, code);
  const changes = await database.transaction(async (on) => {
    const volume = await queryOne(on, LOCK, [id]);
    if (volume === undefined) throw volumeNotFound(idOrName);
    const source = isUuid(manifestId) ? await queryOne(on, SOURCE, [id, manifestId]) : undefined;
    if (source === undefined)
      throw notFound(
        `volume ${quote(name)} has no commit ${quote(manifestId)}: GET /volumes/:id_or_name/manifests lists them`,
        'volume_commit_not_found',
      );
    const sandbox = await queryOne(on, MOUNTED, [id]);
    if (sandbox !== undefined)
      throw refuse(
        `sandbox ${quote(sandbox.name)} has it mounted: stop or delete the sandbox first`,
        'in_use',
      );
    const dirty = await queryOne(on, DIRTY, [id]);
    if (dirty !== undefined)
      throw refuse(
        `the host ${dirty.runner_id} has changes that are not committed: try again in a moment`,
        'concurrent_change',
      );
    if ((await queryOne(on, ROOT, [id, volume.head]))?.root === source.root) return [];
    const number = volume.head + 1;
    const dropped = await queryAll(on, NOT_IN_SOURCE, [id, source.number]);
    await queryAll(on, ADD_SOURCE, [id, source.number, number]);
    await queryAll(on, DROP_BLOBS, [id, volume.head, dropped.map(({ digest }) => digest)]);
    const { root, used_bytes, files } = source;
    const values = [id, number, newUuid(), root, 'restore', null, manifestId, used_bytes, files];
    await queryAll(on, INSERT_MANIFEST, values);
    await project.audit('volume.restore', { kind: 'volume', id })?.(on);
    return queryAll(on, TELL, [id, null]);
  });
  onChanged(changes);
}

function toManifest({ runner_id, restored_from, used_bytes, files, ...row }: ManifestRow): VolumeManifest {
  return {
    id: row.id,
    number: row.number,
    reason: row.reason,
    ...(runner_id === null ? {} : { runner_id }),
    ...(restored_from === null ? {} : { restored_from }),
    used_bytes: Number(used_bytes),
    files: Number(files),
    created_at: row.created_at.toISOString(),
  };
}
