/** What a runner may read from the store and write to it: only what its own assignments name. */
import { queryAll, queryOne, statement, type Database, type Queryable } from '@releap/database';
import type { ArtifactPart, ArtifactRecord } from '@releap/contract';
import { blobRows } from './blob-rows.ts';
import { inStoreOf } from './replica-statements.ts';

/** $1 runner, $2 digest */
const MAY_READ = statement<{ named: boolean }>(
  'blob-named-for-runner',
  `select exists (
            select 1 from artifact_parts p join artifact_locations l on l.artifact_id = p.artifact_id
             where p.digest = $2 and l.runner_id = $1 and l.held and l.desired = 'present')
       or exists (
            select 1 from jobs where kind = 'build' and status = 'running' and runner_id = $1
               and payload -> 'root' -> 'context' ->> 'digest' = $2)
       or exists (
            select 1 from sandbox_states where held and runner_id = $1 and context_digest = $2)
       or exists (
            select 1 from volume_copies c join volume_blobs b on b.volume_id = c.volume_id
             where c.runner_id = $1 and c.desired = 'present' and b.digest = $2)
       or exists (
            select 1 from volume_copies c join volume_manifests m on m.volume_id = c.volume_id
             where c.runner_id = $1 and c.desired = 'present' and m.root = $2) as named`,
);

/** $1 location, $2 runner */
const UPLOAD = statement<{ project_id: string; snapshot_mib: number; blobs: number }>(
  'artifact-upload',
  `select a.project_id, coalesce(a.blob_max_mib, coalesce(s.scratch_mib, 0) * 2::double precision + coalesce(s.mem_mib, 0)) as snapshot_mib,
          (select count(*) from artifact_uploads u where u.location_id = l.id)::integer as blobs
     from artifact_locations l join artifacts a on a.id = l.artifact_id left join snapshot_states s on s.id = a.id
    where l.id = $1 and l.runner_id = $2 and l.desired = 'stored'`,
);
/** $1 location, $2 digest */
const UPLOADED = statement(
  'artifact-uploaded',
  'insert into artifact_uploads (location_id, digest) values ($1, $2) on conflict do nothing',
);
/** $1 digests, $2 volume, $3 runner */
const THERE_OF_VOLUME = statement<{ digest: string }>(
  'volume-blobs-there',
  `update blobs b set touched_at = now() where b.digest = any($1::text[]) and b.stored_at is not null
      and (exists (select 1 from volume_uploads u where u.volume_id = $2 and u.runner_id = $3 and u.digest = b.digest)
        or exists (select 1 from volume_blobs p where p.volume_id = $2 and p.digest = b.digest)
        or exists (select 1 from volume_manifests m where m.volume_id = $2 and m.root = b.digest))
   returning b.digest`,
);
/** `stored`: in the store of the region of the runner. $1 runner, $2 id or digest */
const ARTIFACT = statement<{ id: string; type: ArtifactRecord['type']; stored: boolean; region: string }>(
  'artifact-for-runner',
  `select a.id, a.kind as type, ${inStoreOf('t.id')} as stored, t.region
     from artifacts a join artifact_locations l on l.artifact_id = a.id
     join lateral (select r.region, store_of_region(r.region) as id from runners r where r.id = l.runner_id offset 0) t on true
    where l.runner_id = $1 and l.held and l.desired = 'present' and (a.id::text = $2 or a.digest = $2)
    order by stored desc limit 1`,
);
/** $1 artifact */
const PARTS = statement<{ name: string; digest: string; bytes: string }>(
  'artifact-parts',
  'select name, digest, bytes from artifact_parts where artifact_id = $1 order by name',
);

/** Those of these blobs that a host need not upload for a volume: it has uploaded them, or the volume has them. They are kept for now. */
export async function touchBlobsOfVolume(
  on: Queryable,
  digests: readonly string[],
  volumeId: string,
  runnerId: string,
): Promise<Set<string>> {
  const rows = await queryAll(on, THERE_OF_VOLUME, [digests, volumeId, runnerId]);
  return new Set(rows.map(({ digest }) => digest));
}

const MIB = 1024 * 1024;
/** Largest root image, and what the tables of a layer take beside its data. */
const ROOT_MAX_MIB = 64 * 1024;

export interface Upload {
  projectId: string;
  /** Of one blob. */
  maxBytes: number;
  /** That were uploaded already. */
  blobs: number;
}

export interface WantedArtifact {
  id: string;
  type: ArtifactRecord['type'];
  /** Of the runner. */
  region: string;
  /** Undefined while it is not in the store of the region. */
  parts: ArtifactPart[] | undefined;
}

export interface BlobAccess {
  mayRead(runnerId: string, digest: string): Promise<boolean>;
  /** Undefined: the runner is not to store an artifact at this location. */
  upload(runnerId: string, locationId: string): Promise<Upload | undefined>;
  uploaded(locationId: string, digest: string): Promise<void>;
  /** Those that need not be uploaded to this store: the location's host has uploaded them, or an artifact of the same project has them. */
  present(
    digests: readonly string[],
    locationId: string,
    projectId: string,
    storeId: string,
  ): Promise<Set<string>>;
  /** An artifact that the runner is to have. */
  artifact(runnerId: string, ref: string): Promise<WantedArtifact | undefined>;
}

export function blobAccess({ pool }: Database): BlobAccess {
  return {
    mayRead: async (runnerId, digest) => (await queryOne(pool, MAY_READ, [runnerId, digest]))?.named === true,
    async upload(runnerId, locationId) {
      const row = await queryOne(pool, UPLOAD, [locationId, runnerId]);
      return (
        row && {
          projectId: row.project_id,
          maxBytes: (row.snapshot_mib + ROOT_MAX_MIB) * MIB,
          blobs: row.blobs,
        }
      );
    },
    async uploaded(locationId, digest) {
      await queryAll(pool, UPLOADED, [locationId, digest]);
    },
    async present(digests, locationId, projectId, storeId) {
      const { there, values } = blobRows(storeId);
      const rows = await queryAll(pool, there, values(digests, locationId, projectId));
      return new Set(rows.map(({ digest }) => digest));
    },
    async artifact(runnerId, ref) {
      const found = await queryOne(pool, ARTIFACT, [runnerId, ref]);
      if (found === undefined) return undefined;
      const { stored, ...artifact } = found;
      if (!stored) return { ...artifact, parts: undefined };
      const parts = await queryAll(pool, PARTS, [artifact.id]);
      return { ...artifact, parts: parts.map((part) => ({ ...part, bytes: Number(part.bytes) })) };
    },
  };
}
