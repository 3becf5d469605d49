/**
 * The kind `volume`: a host's copy of a volume. The id is the volume's; each host has its own generations. Content is transferred
 * by HTTP (`wire/internal/volumes.ts`).
 */
import { Type, type Static } from 'typebox';
import { VolumeHead } from '../wire/internal/volumes.ts';
import { LIMITS } from '../wire/platform/limits.ts';
import { assignmentOf, reportOf } from './envelope.ts';
import { Count, text, Uuid } from '../wire/platform/fields.ts';

/** The capability of runners that mount volumes in sandboxes. */
export const VOLUMES_CAPABILITY = 'volumes';

export const VolumeSpec = Type.Object({
  size_gb: Type.Integer({ minimum: LIMITS.volumeGbMin, maximum: LIMITS.volumeGbMax }),
  /** The newest commit; null when there is none. A host that has the volume mounted merges it. */
  head: Type.Union([VolumeHead, Type.Null()]),
  /**
   * Counter of requests to commit. A host answers each by reporting it once everything that was written before it arrived is
   * committed: at once, when it has no changes or is still opening the volume.
   */
  commit: Count,
});
export type VolumeSpec = Static<typeof VolumeSpec>;

/**
 * `present`: the host may have a copy, and fetches it when a sandbox mounts the volume. `deleted`: the volume was deleted, and
 * nothing of it may remain, changes that were not committed included.
 */
export const VolumeAssignment = assignmentOf(
  'volume',
  Type.Enum(['present', 'deleted'] as const),
  VolumeSpec,
);
export type VolumeAssignment = Static<typeof VolumeAssignment>;

export const VolumeCopyDetail = Type.Object({
  /** Why the copy cannot be committed or brought up to date at the moment. It keeps its changes, and tries again. */
  error: Type.Optional(Type.String()),
  /** Number of the manifest that the copy is based on; absent for none. */
  number: Type.Optional(Count),
  /** RFC 3339: the host has had changes that are not committed since then; absent when it has none. */
  dirty_since: Type.Optional(text(64)),
  /** The newest request to commit that is fulfilled. */
  commit: Type.Optional(Count),
});
export type VolumeCopyDetail = Static<typeof VolumeCopyDetail>;

/**
 * `present`: the host has a copy. `absent`: it has none yet, or has evicted it. A host reports when `detail` changes, and a copy
 * with changes before the end of the sandbox that made them. `deleted` answers the desired state of that name alone.
 */
export const VolumeReport = reportOf(
  'volume',
  Type.Enum(['present', 'absent', 'deleted', 'unsupported'] as const),
  VolumeCopyDetail,
);
export type VolumeReport = Static<typeof VolumeReport>;

/** A volume in a sandbox. */
export const VolumeMount = Type.Object({
  id: Uuid,
  mount_path: text(1024),
  /** Relative, without empty parts, `.` and `..`; absent for the whole volume. Created when it does not exist. */
  subpath: Type.Optional(text(1024)),
});
export type VolumeMount = Static<typeof VolumeMount>;
