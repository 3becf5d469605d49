/** Snapshots on the wire. */
import { Type, type Static } from 'typebox';
import { BOUNDS } from './platform/limits.ts';
import { NextCursor, TimeoutParam, cursorKind } from './platform/paging.ts';
import { UpdatedAt } from './platform/fields.ts';

export const SNAPSHOT_KINDS = ['disk', 'full'] as const;
export type SnapshotKind = (typeof SNAPSHOT_KINDS)[number];

export const SNAPSHOT_STATUSES = ['pending', 'ready', 'failed'] as const;
export const SnapshotStatus = Type.Enum(SNAPSHOT_STATUSES);
export type SnapshotStatus = Static<typeof SnapshotStatus>;

export const SnapshotCreateRequest = Type.Object({
  name: Type.String({
    minLength: 1,
    maxLength: BOUNDS.snapshotNameChars,
    description: 'Unique in the project; the name of a deleted snapshot is free.',
  }),
  kind: Type.Optional(
    Type.Enum(SNAPSHOT_KINDS, {
      default: 'disk',
      description:
        '`disk`: of a running sandbox that is not persistent. `full`, memory and disk: of a persistent one.',
    }),
  ),
});
export type SnapshotCreateRequest = Static<typeof SnapshotCreateRequest>;

export const SnapshotRecord = Type.Object({
  id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  kind: Type.Enum(SNAPSHOT_KINDS),
  status: SnapshotStatus,
  error: Type.Union([Type.String(), Type.Null()], { description: 'Why it failed.' }),
  no_changes: Type.Boolean({
    description: 'The sandbox had written nothing since the previous snapshot, whose disk is shared.',
  }),
  parent_id: Type.Union([Type.String(), Type.Null()], {
    description: 'The snapshot that it descends from. That one cannot be deleted before this one.',
  }),
  sandbox_id: Type.String({ description: 'The captured sandbox.' }),
  region: Type.String({ description: 'Its home region.' }),
  image_ref: Type.String({ description: 'The requested image of the sandbox.' }),
  vcpus: Type.Integer(),
  mem_mib: Type.Integer(),
  scratch_mib: Type.Integer(),
  manifest_name: Type.Optional(
    Type.String({ description: 'Digest of the root image below its disk; once ready.' }),
  ),
  disk_bytes: Type.Optional(
    Type.Integer({ description: 'Bytes of its disk, without shared layers; once ready.' }),
  ),
  artifact_ref: Type.Optional(Type.String({ description: 'Full, once ready: its location on the machine.' })),
  fc_version: Type.Optional(Type.String({ description: 'Full, once ready: the VMM and its version.' })),
  cpu_marker: Type.Optional(Type.String({ description: 'Full, once ready: CPU model and accelerator.' })),
  mem_bytes: Type.Optional(Type.Integer({ description: 'Full, once ready: size of the memory.' })),
  runner_id: Type.Optional(Type.String({ description: 'Full: the machine that has it.' })),
  created_at: Type.String({ format: 'date-time', description: 'RFC 3339.' }),
  updated_at: Type.Optional(UpdatedAt),
});
export type SnapshotRecord = Static<typeof SnapshotRecord>;

export const SnapshotCreateResponse = Type.Object({
  ...SnapshotRecord.properties,
  job_id: Type.String({ format: 'uuid' }),
});
export type SnapshotCreateResponse = Static<typeof SnapshotCreateResponse>;

export const SnapshotList = Type.Object({ snapshots: Type.Array(SnapshotRecord), next_cursor: NextCursor });
export type SnapshotList = Static<typeof SnapshotList>;

export const SnapshotParams = Type.Object({ id: Type.String({ description: 'Snapshot id.' }) });

export const SnapshotGetQuery = Type.Object({
  wait: Type.Optional(SnapshotStatus),
  timeout_ms: Type.Optional(TimeoutParam),
});
export type SnapshotGetQuery = Static<typeof SnapshotGetQuery>;

export const SnapshotDeleteResponse = Type.Object({
  id: Type.String({ format: 'uuid' }),
  deleted: Type.Literal(true),
});
export type SnapshotDeleteResponse = Static<typeof SnapshotDeleteResponse>;

/** Whether a long poll for `wait` ends: `ready` and `failed` do not change by themselves. */
export function snapshotWaitIsOver(wait: SnapshotStatus | undefined, status: SnapshotStatus): boolean {
  return wait === undefined || wait === status || status !== 'pending';
}

/** Cursors of lists of snapshots. */
export const SNAPSHOT_CURSORS = cursorKind(3);
