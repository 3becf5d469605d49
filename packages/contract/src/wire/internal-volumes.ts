/**
 * The HTTP operations with which runners read and commit volumes. A runner may use those of which it is assigned a copy (kind
 * `volume` of the runner protocol).
 */
import { Type, type Static } from 'typebox';
import { Uuid } from './platform/fields.ts';
import { BlobDigest } from './internal.ts';
import { BOUNDS, LIMITS } from './platform/limits.ts';

const Bytes = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });
const Number32 = Type.Integer({ minimum: 0, maximum: BOUNDS.int32 });

/** The newest commit of a volume. */
export const VolumeHead = Type.Object({
  /** 1 for the first commit. */
  number: Type.Integer({ minimum: 1, maximum: BOUNDS.int32 }),
  /** The blob that describes the whole tree. */
  root: BlobDigest,
  /** Of that blob. */
  bytes: Bytes,
});
export type VolumeHead = Static<typeof VolumeHead>;

/** `GET`, by a runner. */
export const RUNNER_VOLUME_PATH = '/internal/volumes/:id';
export const RunnerVolumeParams = Type.Object({ id: Uuid });
export const RunnerVolumeQuery = Type.Object({
  /** The counter of requests to commit that other hosts must have fulfilled; absent for none. */
  commit: Type.Optional(Number32),
});

/** A volume as a host needs it. */
export const RunnerVolume = Type.Object({
  id: Uuid,
  size_gb: Type.Integer({ minimum: LIMITS.volumeGbMin, maximum: LIMITS.volumeGbMax }),
  state: Type.Enum(['ready', 'deleted'] as const),
  /** Null: nothing was ever committed, and the volume is empty. */
  head: Type.Union([VolumeHead, Type.Null()]),
  /** Counter of requests to commit; see `VolumeSpec`. */
  commit: Number32,
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
  parent: Number32,
  /** Root of the parent: after a restore of the database its number may be that of another manifest. */
  parent_root: Type.Optional(BlobDigest),
  root: Type.Object({ digest: BlobDigest, bytes: Bytes }),
  /** Packs that the parent does not name. All of them, and the root, are in the store. */
  blobs: Type.Array(Type.Object({ digest: BlobDigest, bytes: Bytes }), {
    maxItems: VOLUME_COMMIT_BLOBS_MAX,
  }),
  /** Packs of the parent that the root no longer names. */
  dropped: Type.Array(BlobDigest, { maxItems: VOLUME_COMMIT_BLOBS_MAX }),
  /** How many packs the root names in total. */
  packs: Number32,
  /** Sum of the sizes of its files. */
  used_bytes: Bytes,
  files: Bytes,
  reason: Type.Enum(VOLUME_COMMIT_REASONS),
  conflicts: Type.Array(MergeConflict, { maxItems: VOLUME_COMMIT_CONFLICTS_MAX }),
});
export type VolumeCommitRequest = Static<typeof VolumeCommitRequest>;

/** Repeated with the same parent and root, a commit gets the same answer. */
export const VolumeCommitted = Type.Object({ number: Number32, manifest_id: Uuid });
export type VolumeCommitted = Static<typeof VolumeCommitted>;

/** 409: another commit came first, or a client restored an older one. The runner merges `head`, and tries again. */
export const VolumeMoved = Type.Object({ error: Type.String(), head: Type.Union([VolumeHead, Type.Null()]) });
export type VolumeMoved = Static<typeof VolumeMoved>;
