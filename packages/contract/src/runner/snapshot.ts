/** The kind `snapshot`: a capture of a sandbox's disk, or of its memory and disk. */
import { Type, type Static } from 'typebox';
import { assignmentOf, reportOf } from './envelope.ts';
import { Large, text, Uuid } from '../wire/platform/fields.ts';

export const SnapshotSpec = Type.Object({
  /** The sandbox that it is captured from. */
  vm_id: Uuid,
  kind: Type.Enum(['disk', 'full'] as const),
  /** The snapshot that the sandbox's disk descends from: if nothing was written since, it is reused. */
  parent_id: Type.Optional(Uuid),
  /** It was reported `ready` before: a runner that does not have it reports `failed`, and captures nothing. */
  captured: Type.Optional(Type.Literal(true)),
});
export type SnapshotSpec = Static<typeof SnapshotSpec>;

/**
 * `ready`: it must exist; if it does not yet, the runner captures it from its sandbox. A snapshot that was reported
 * `ready` is never captured again. `deleted`: nothing of it may remain.
 */
export const SnapshotAssignment = assignmentOf(
  'snapshot',
  Type.Enum(['ready', 'deleted'] as const),
  SnapshotSpec,
);
export type SnapshotAssignment = Static<typeof SnapshotAssignment>;

export const SnapshotDetail = Type.Object({
  /** Why it failed. The sandbox has lost nothing. */
  error: Type.Optional(Type.String()),
  /** The sandbox has written nothing since the parent snapshot, whose disk is shared. */
  no_changes: Type.Optional(Type.Boolean()),
  /** Where the runner stores it; opaque to others. */
  artifact_ref: Type.Optional(text(1024)),
  /** Digest of the root image that its disk is based on. */
  manifest_name: Type.Optional(text(512)),
  /** Bytes that the disk takes, without what it shares with others. */
  disk_bytes: Type.Optional(Large),
  /** Only with memory: the VMM and its version, the CPU model and accelerator, and the size of the guest's memory. */
  fc_version: Type.Optional(text(200)),
  cpu_marker: Type.Optional(text(400)),
  mem_bytes: Type.Optional(Large),
});
export type SnapshotDetail = Static<typeof SnapshotDetail>;

export const SnapshotReport = reportOf(
  'snapshot',
  Type.Enum(['ready', 'failed', 'deleted', 'unsupported'] as const),
  SnapshotDetail,
);
export type SnapshotReport = Static<typeof SnapshotReport>;
