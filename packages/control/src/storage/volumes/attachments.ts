/** The volumes of sandboxes. */
import { conflict, type ResolvedSandbox } from '@releap/contract';
import type { VolumeMount } from '@releap/contract/runner';
import { queryAll, statement, type Queryable } from '@releap/database';
import { findVolume } from './volumes.ts';

/** An attachment with its volume looked up. */
export interface ResolvedAttachment {
  volumeId: string;
  path: string;
  subpath: string | null;
}

/** Keeps each volume from its deletion until the transaction ends, and writes nothing of one that is deleted. $1 sandbox, $2 attachments */
const INSERT = statement<{ mount_path: string }>(
  'volume-attachments-insert',
  `with kept as (
     select id from volumes
      where id in (select volume from jsonb_to_recordset($2::jsonb) as t(volume uuid)) and deleted_at is null for key share
   )
   insert into volume_attachments (sandbox_id, mount_path, volume_id, subpath, position)
   select $1::uuid, t.path, t.volume, t.subpath, t.position
     from jsonb_to_recordset($2::jsonb) as t(path text, volume uuid, subpath text, position integer)
     join kept on kept.id = t.volume
   returning mount_path`,
);

/** $1 sandboxes */
const OF_SANDBOXES = statement<{
  sandbox_id: string;
  volume_id: string;
  mount_path: string;
  subpath: string | null;
}>(
  'volume-attachments-of-sandboxes',
  `select sandbox_id, volume_id, mount_path, subpath from volume_attachments
    where sandbox_id = any($1::uuid[]) order by sandbox_id, position`,
);

/** @throws 400 and 404 of the references */
export function resolveAttachments(
  on: Queryable,
  projectId: string,
  volumes: ResolvedSandbox['volumes'],
): Promise<ResolvedAttachment[]> {
  return Promise.all(
    volumes.map(async ({ volume, mount_path: path, subpath }) => ({
      volumeId: (await findVolume(on, projectId, volume)).id,
      path,
      subpath,
    })),
  );
}

/** In the transaction that writes the sandbox. @throws 409 when a volume was deleted meanwhile */
export async function insertAttachments(
  on: Queryable,
  sandboxId: string,
  attachments: readonly ResolvedAttachment[],
): Promise<void> {
  if (attachments.length === 0) return;
  const rows = attachments.map(({ volumeId, path, subpath }, position) => ({
    path,
    volume: volumeId,
    subpath,
    position,
  }));
  const written = await queryAll(on, INSERT, [sandboxId, JSON.stringify(rows)]);
  if (written.length < rows.length)
    throw conflict('a volume was deleted meanwhile: it is not ready any more', 'concurrent_change');
}

/** What assignments say of volumes, by sandbox; those without any are absent. */
export async function volumeMounts(
  on: Queryable,
  sandboxIds: readonly string[],
): Promise<Map<string, VolumeMount[]>> {
  const found = new Map<string, VolumeMount[]>();
  if (sandboxIds.length === 0) return found;
  for (const { sandbox_id, volume_id: id, mount_path, subpath } of await queryAll(on, OF_SANDBOXES, [
    sandboxIds,
  ])) {
    const mount = { id, mount_path, ...(subpath === null ? {} : { subpath }) };
    found.set(sandbox_id, [...(found.get(sandbox_id) ?? []), mount]);
  }
  return found;
}
