/** What runners upload for commits: only of volumes that they are assigned a copy of. */
import { VOLUME_BLOB_MAX_BYTES } from '@releap/contract';
import { queryAll, queryOne, statement, type Database } from '@releap/database';
import { touchBlobsOfVolume } from '../artifacts/blob-access.ts';
import { noCopy } from './runner-volumes.ts';

/** $1 volume, $2 runner */
const UPLOADS = statement<{ size_gb: number; uploads: number }>(
  'volume-uploads',
  `select v.size_gb, (select count(*) from volume_uploads u where u.volume_id = v.id and u.runner_id = $2)::integer as uploads
     from volume_copies c join volumes v on v.id = c.volume_id
    where c.volume_id = $1 and c.runner_id = $2 and c.desired = 'present' and v.deleted_at is null`,
);
/** $1 volume, $2 runner, $3 digest */
const UPLOADED = statement(
  'volume-uploaded',
  `insert into volume_uploads (volume_id, runner_id, digest) values ($1, $2, $3)
   on conflict (volume_id, runner_id, digest) do update set created_at = now()`,
);
/** Blobs of commits that were refused and made again. $1 volume, $2 runner, $3 rows */
const FORGET_OLDEST = statement(
  'volume-uploads-forget',
  `delete from volume_uploads where volume_id = $1 and runner_id = $2 and digest in (
     select digest from volume_uploads where volume_id = $1 and runner_id = $2 order by created_at limit $3)`,
);
const FORGOTTEN = 100;
/** Most uploads of one host that are not part of a commit yet, beside those of a full volume in packs of 16 MiB. */
const UPLOADS_BESIDE = 4_096;
const PACKS_PER_GB = 64;

export interface VolumeUploads {
  /** Those that the host need not upload. @throws 404 */
  present(runnerId: string, volumeId: string, digests: readonly string[]): Promise<Set<string>>;
  /** How large a blob may be that the host uploads. Forgets its oldest uploads where no commit has named very many. @throws 404 */
  upload(runnerId: string, volumeId: string): Promise<{ maxBytes: number }>;
  uploaded(runnerId: string, volumeId: string, digest: string): Promise<void>;
}

export function createVolumeUploads({ pool }: Database): VolumeUploads {
  async function uploadsOf(
    runnerId: string,
    volumeId: string,
  ): Promise<{ size_gb: number; uploads: number }> {
    const row = await queryOne(pool, UPLOADS, [volumeId, runnerId]);
    if (row === undefined) throw noCopy(volumeId);
    return row;
  }

  return {
    async present(runnerId, id, digests) {
      await uploadsOf(runnerId, id);
      return touchBlobsOfVolume(pool, digests, id, runnerId);
    },
    async upload(runnerId, id) {
      const { size_gb, uploads } = await uploadsOf(runnerId, id);
      const most = size_gb * PACKS_PER_GB + UPLOADS_BESIDE;
      if (uploads >= most) await queryAll(pool, FORGET_OLDEST, [id, runnerId, uploads - most + FORGOTTEN]);
      return { maxBytes: VOLUME_BLOB_MAX_BYTES };
    },
    async uploaded(runnerId, id, digest) {
      await queryAll(pool, UPLOADED, [id, runnerId, digest]);
    },
  };
}
