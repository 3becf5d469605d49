/** Commits of hosts: a compare-and-swap of a volume's head. */
import type { AssignmentChange } from '../../platform/events/event-bus.ts';
import {
  ApiError,
  badRequest,
  newUuid,
  type VolumeCommitRequest,
  type VolumeCommitted,
  type VolumeHead,
} from '@releap/contract';
import { queryAll, queryOne, statement, type Database, type Queryable } from '@releap/database';
import { TELL } from './copy-statements.ts';
import { noCopy } from './runner-volumes.ts';

/** Locked until the end of the transaction: commits, restores and the deletion of a volume are serialized; sandboxes can be created meanwhile. $1 volume, $2 runner */
const LOCK = statement<{ head: number }>(
  'volume-commit-lock',
  `select v.head from volumes v join volume_copies c on c.volume_id = v.id
    where v.id = $1 and v.deleted_at is null and c.runner_id = $2 and c.desired = 'present' for no key update of v`,
);
/** $1 volume, $2 number */
const MANIFEST = statement<{ id: string; number: number; root: string; bytes: string }>(
  'volume-commit-manifest',
  `select m.id, m.number, m.root, b.bytes from volume_manifests m join blobs b on b.digest = m.root
    where m.volume_id = $1 and m.number = $2`,
);
/**
 * Those blobs that are in the store, and whose content this host or this volume has. They cannot be removed before the end of the
 * transaction. $1 digests, $2 bytes, $3 volume, $4 runner
 */
const PROVEN = statement<{ digest: string }>(
  'volume-commit-proven',
  `select b.digest from blobs b join unnest($1::text[], $2::bigint[]) as t(digest, bytes) on t.digest = b.digest and t.bytes = b.bytes
    where b.stored_at is not null
      and (exists (select 1 from volume_uploads u where u.volume_id = $3 and u.runner_id = $4 and u.digest = b.digest)
        or exists (select 1 from volume_blobs p where p.volume_id = $3 and p.digest = b.digest)
        or exists (select 1 from volume_manifests m where m.volume_id = $3 and m.root = b.digest))
      for key share of b`,
);
/** $1 volume, $2 number, $3 digests */
const ADD_BLOBS = statement(
  'volume-commit-add-blobs',
  `insert into volume_blobs (volume_id, digest, first) select $1, digest, $2 from unnest($3::text[]) as digest
   on conflict (volume_id, digest) where last is null do nothing`,
);
/** $1 volume, $2 last number, $3 digests */
export const DROP_BLOBS = statement<{ digest: string }>(
  'volume-commit-drop-blobs',
  `update volume_blobs set last = $2 where volume_id = $1 and last is null and digest = any($3::text[]) returning digest`,
);
/** $1 volume */
const COUNT_BLOBS = statement<{ packs: number }>(
  'volume-commit-count-blobs',
  'select count(*)::integer as packs from volume_blobs where volume_id = $1 and last is null',
);
/** $1 volume, $2 number, $3 id, $4 root, $5 reason, $6 runner, $7 restored from, $8 used bytes, $9 files */
export const INSERT_MANIFEST = statement(
  'volume-commit-insert',
  `with moved as (
     update volumes set head = $2, used_bytes = $8, used_bytes_at = now(), last_used_at = now() where id = $1
   )
   insert into volume_manifests (volume_id, number, id, root, reason, runner_id, restored_from, used_bytes, files)
   values ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
);
/** $1 volume, $2 number, $3 runner, $4 paths, $5 kept as, $6 kinds */
const INSERT_CONFLICTS = statement(
  'volume-commit-conflicts',
  `insert into volume_conflicts (volume_id, number, runner_id, path, kept_as, kind)
   select $1, $2, $3, t.path, t.kept_as, t.kind from unnest($4::text[], $5::text[], $6::text[]) as t(path, kept_as, kind)`,
);
/** $1 volume, $2 runner, $3 digests */
const USE_UPLOADS = statement(
  'volume-commit-uploads',
  'delete from volume_uploads where volume_id = $1 and runner_id = $2 and digest = any($3::text[])',
);

/**
 * Makes the root the newest manifest if the head is still the parent. Repeated, it answers the same.
 * @throws 404; 400 for a blob that is not in the store, or when packs are added or dropped that do not add up; 409 with the head
 */
export async function commitVolume(
  { database, onChanged }: { database: Database; onChanged: (changes: readonly AssignmentChange[]) => void },
  runnerId: string,
  volumeId: string,
  request: VolumeCommitRequest,
): Promise<VolumeCommitted> {
  const { committed, changes } = await database.transaction(async (on) => {
    const volume = await queryOne(on, LOCK, [volumeId, runnerId]);
    if (volume === undefined) throw noCopy(volumeId);
    const same = await committedBefore(on, volumeId, volume.head, request);
    if (same !== undefined) return { committed: same, changes: [] };
    const committed = await insertCommit(on, runnerId, volumeId, request);
    return { committed, changes: await queryAll(on, TELL, [volumeId, runnerId]) };
  });
  onChanged(changes);
  return committed;
}

/** The manifest that an earlier, equal request has made. @throws 409 when another one is the head */
async function committedBefore(
  on: Queryable,
  volumeId: string,
  head: number,
  { parent, parent_root: parentRoot, root }: VolumeCommitRequest,
): Promise<VolumeCommitted | undefined> {
  const manifest = (number: number) => queryOne(on, MANIFEST, [volumeId, number]);
  const newest = head === 0 ? undefined : await manifest(head);
  if (parent === head && (parentRoot ?? newest?.root) === newest?.root) {
    // Nothing has changed since.
    return newest?.root === root.digest ? { number: newest.number, manifest_id: newest.id } : undefined;
  }
  const next = await manifest(parent + 1);
  if (next?.root === root.digest) return { number: next.number, manifest_id: next.id };
  const moved: VolumeHead | null = newest
    ? { number: newest.number, root: newest.root, bytes: Number(newest.bytes) }
    : null;
  throw new ApiError(
    409,
    `the newest commit of volume ${volumeId} is ${head}, not ${parent}: merge it first`,
    {
      code: 'concurrent_change',
      fields: { head: moved },
    },
  );
}

async function insertCommit(
  on: Queryable,
  runnerId: string,
  volumeId: string,
  request: VolumeCommitRequest,
): Promise<VolumeCommitted> {
  const { parent, root, blobs, dropped, packs, conflicts } = request;
  const number = parent + 1;
  const all = [root, ...blobs];
  const digests = all.map(({ digest }) => digest);
  const bytes = all.map((blob) => blob.bytes);
  const proven = new Set(
    (await queryAll(on, PROVEN, [digests, bytes, volumeId, runnerId])).map(({ digest }) => digest),
  );
  const missing = digests.find((digest) => !proven.has(digest));
  if (missing !== undefined)
    throw badRequest(`the blob ${missing} of the commit was not uploaded by this runner: upload it first`);
  await queryAll(on, ADD_BLOBS, [volumeId, number, digests.slice(1)]);
  const gone = await queryAll(on, DROP_BLOBS, [volumeId, parent, dropped]);
  const named = (await queryOne(on, COUNT_BLOBS, [volumeId]))?.packs ?? 0;
  // A pack that is dropped by mistake would be removed from the store.
  if (gone.length !== new Set(dropped).size || named !== packs)
    throw badRequest(
      `with ${blobs.length} new packs and without ${gone.length} of ${dropped.length} dropped ones the volume has ${named}, but the root names ${packs}`,
    );
  const id = newUuid();
  await queryAll(on, INSERT_MANIFEST, [
    volumeId,
    number,
    id,
    root.digest,
    request.reason,
    runnerId,
    null,
    request.used_bytes,
    request.files,
  ]);
  if (conflicts.length > 0)
    await queryAll(on, INSERT_CONFLICTS, [
      volumeId,
      number,
      runnerId,
      conflicts.map(({ path }) => path),
      conflicts.map((one) => one.kept_as),
      conflicts.map(({ kind }) => kind),
    ]);
  await queryAll(on, USE_UPLOADS, [volumeId, runnerId, digests]);
  return { number, manifest_id: id };
}
