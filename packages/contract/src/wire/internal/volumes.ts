/**
 * The HTTP operations with which runners read and commit volumes. A runner may use those of which it is assigned a copy (kind
 * `volume` of the runner protocol).
 */
import { Type, type Static } from 'typebox';
import { Count, Large, Uuid } from '../platform/fields.ts';
import { BOUNDS, LIMITS } from '../platform/limits.ts';
import type { Operation } from '../platform/operation.ts';
import { BlobDigest, MissingBlobsResponse } from './artifacts.ts';

/** The newest commit of a volume. */
export const VolumeHead = Type.Object({
  /** 1 for the first commit. */
  number: Type.Integer({ minimum: 1, maximum: BOUNDS.int32 }),
  /** The blob that describes the whole tree. */
  root: BlobDigest,
  /** Of that blob. */
  bytes: Large,
});
export type VolumeHead = Static<typeof VolumeHead>;

/** `GET`, by a runner. */
export const RUNNER_VOLUME_PATH = '/internal/volumes/:id';
export const RunnerVolumeParams = Type.Object({ id: Uuid });
export const RunnerVolumeQuery = Type.Object({
  /** The counter of requests to commit that other hosts must have fulfilled; absent for none. */
  commit: Type.Optional(Count),
});

/** A volume as a host needs it. */
export const RunnerVolume = Type.Object({
  id: Uuid,
  size_gb: Type.Integer({ minimum: LIMITS.volumeGbMin, maximum: LIMITS.volumeGbMax }),
  state: Type.Enum(['ready', 'deleted'] as const),
  /** Null: nothing was ever committed, and the volume is empty. */
  head: Type.Union([VolumeHead, Type.Null()]),
  /** Counter of requests to commit; see `VolumeSpec`. */
  commit: Count,
  /**
   * Another host has what it has not committed for the request of the query. It has been told to; ask again until this is
   * false, or for as long as the start may wait. Hosts that are lost do not count.
   */
  uncommitted: Type.Boolean(),
});
export type RunnerVolume = Static<typeof RunnerVolume>;

/**
 * `POST`, by a runner that is about to mount the volume for a sandbox: other hosts that have it mounted or changed are told to
 * commit. Answers like `GET` with the `commit` of that request.
 */
export const OPEN_VOLUME_PATH = '/internal/volumes/:id/open';

/** `POST`, by a runner: which of these blobs it must upload. */
export const MISSING_VOLUME_BLOBS_PATH = '/internal/volumes/:id/missing';
/** Most blobs of one such request. */
export const MISSING_VOLUME_BLOBS_MAX = 1_000;
export const MissingVolumeBlobsRequest = Type.Object({
  digests: Type.Array(BlobDigest, { maxItems: MISSING_VOLUME_BLOBS_MAX }),
});

/** Largest blob of a volume, in bytes: a pack, or the root of very many packs. */
export const VOLUME_BLOB_MAX_BYTES = 128 * 1024 * 1024;
/** Most new blobs, and most dropped ones, of one commit: 640 GiB in packs of 16 MiB. */
export const VOLUME_COMMIT_BLOBS_MAX = 40_000;
/** Most conflicts of one commit. */
export const VOLUME_COMMIT_CONFLICTS_MAX = 1_000;

/** Paths have up to 4096 bytes, each of which may be escaped. */
const Path = Type.String({ minLength: 1, maxLength: 4 * 4096 });
export const MergeConflict = Type.Object({
  path: Path,
  kept_as: Path,
  kind: Type.String({ minLength: 1, maxLength: 64 }),
});
export type MergeConflict = Static<typeof MergeConflict>;

/** Why a manifest was made: `background`, `detach`, `request` and `merge` by hosts, `restore` by a client. */
export const VOLUME_COMMIT_REASONS = ['background', 'detach', 'request', 'merge'] as const;

/** `POST`, by a runner. */
export const COMMIT_VOLUME_PATH = '/internal/volumes/:id/commits';
export const VolumeCommitRequest = Type.Object({
  /** Number of the manifest that it changes; 0 for the first. */
  parent: Count,
  /** Root of the parent: after a restore of the database its number may be that of another manifest. */
  parent_root: Type.Optional(BlobDigest),
  root: Type.Object({ digest: BlobDigest, bytes: Large }),
  /** Packs that the parent does not name. All of them, and the root, are in the store. */
  blobs: Type.Array(Type.Object({ digest: BlobDigest, bytes: Large }), {
    maxItems: VOLUME_COMMIT_BLOBS_MAX,
  }),
  /** Packs of the parent that the root no longer names. */
  dropped: Type.Array(BlobDigest, { maxItems: VOLUME_COMMIT_BLOBS_MAX }),
  /** How many packs the root names in total. */
  packs: Count,
  /** Sum of the sizes of its files. */
  used_bytes: Large,
  files: Large,
  reason: Type.Enum(VOLUME_COMMIT_REASONS),
  conflicts: Type.Array(MergeConflict, { maxItems: VOLUME_COMMIT_CONFLICTS_MAX }),
});
export type VolumeCommitRequest = Static<typeof VolumeCommitRequest>;

/** Repeated with the same parent and root, a commit gets the same answer. */
export const VolumeCommitted = Type.Object({ number: Count, manifest_id: Uuid });
export type VolumeCommitted = Static<typeof VolumeCommitted>;

/** 409: another commit came first, or a client restored an older one. The runner merges `head`, and tries again. */
export const VolumeMoved = Type.Object({ error: Type.String(), head: Type.Union([VolumeHead, Type.Null()]) });
export type VolumeMoved = Static<typeof VolumeMoved>;

const noCopy = 'This runner has no copy of the volume.';

export const internalVolumeOperations = {
  getRunnerVolume: {
    method: 'GET',
    path: RUNNER_VOLUME_PATH,
    tag: 'Runner',
    summary: 'Read the newest commit of a volume, and whether other hosts have committed',
    security: 'runner',
    params: RunnerVolumeParams,
    query: RunnerVolumeQuery,
    success: { status: 200, response: { description: 'The volume.', schema: RunnerVolume } },
    errors: { 404: noCopy },
  },
  openRunnerVolume: {
    method: 'POST',
    path: OPEN_VOLUME_PATH,
    tag: 'Runner',
    summary: 'Tell other hosts to commit a volume that this one is about to mount',
    security: 'runner',
    params: RunnerVolumeParams,
    success: { status: 200, response: { description: 'The volume.', schema: RunnerVolume } },
    errors: { 404: `${noCopy} Or it was deleted.` },
  },
  listMissingVolumeBlobs: {
    method: 'POST',
    path: MISSING_VOLUME_BLOBS_PATH,
    tag: 'Runner',
    summary: 'List the blobs of a volume that this runner must upload',
    description:
      'A blob that the store has is listed too, unless this runner or a commit of the volume has proven to have it.',
    security: 'runner',
    params: RunnerVolumeParams,
    body: MissingVolumeBlobsRequest,
    success: {
      status: 200,
      response: { description: 'What must be uploaded.', schema: MissingBlobsResponse },
    },
    errors: { 404: `${noCopy} Or it was deleted.` },
  },
  storeVolumeCommit: {
    method: 'POST',
    path: COMMIT_VOLUME_PATH,
    tag: 'Runner',
    summary: 'Make a tree the newest commit of a volume',
    description: 'Only if the newest one is still `parent`. A repeated request gets the same response.',
    security: 'runner',
    params: RunnerVolumeParams,
    body: VolumeCommitRequest,
    success: { status: 200, response: { description: 'Committed.', schema: VolumeCommitted } },
    errors: {
      400: 'A blob is not in the store, or was not uploaded by this runner; or the packs do not add up.',
      404: `${noCopy} Or it was deleted.`,
      409: 'Another commit is the newest: `head` names it.',
    },
  },
} as const satisfies Record<string, Operation>;
