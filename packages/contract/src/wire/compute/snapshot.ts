/** Snapshots on the wire. */
import { Type, type Static } from 'typebox';
import { UpdatedAt } from '../platform/fields.ts';
import { BOUNDS } from '../platform/limits.ts';
import type { ApiResource, Operation } from '../platform/operation.ts';
import { cursorKind, NextCursor, PageQuery, TimeoutParam } from '../platform/paging.ts';
import { SandboxParams } from './sandbox-record.ts';

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

const unknownSnapshot =
  'The id is unknown, malformed, of another project, or of a snapshot that was deleted.';

export const snapshotOperations = {
  createSnapshot: {
    method: 'POST',
    path: '/vms/:id/snapshots',
    tag: 'Snapshots',
    summary: 'Take a snapshot of a running sandbox',
    description:
      'Responds as soon as it is recorded; the sandbox is paused for a moment. Wait with ' +
      '`GET /snapshots/:id?wait=ready`. Several snapshots of one sandbox are taken one after the other.',
    security: 'workload',
    params: SandboxParams,
    body: SnapshotCreateRequest,
    idempotent: true,
    success: { status: 200, response: { description: 'Accepted.', schema: SnapshotCreateResponse } },
    codes: ['not_persistent', 'wrong_state', 'name_exists', 'quota_exceeded'],
    errors: {
      400: 'The name or kind is not valid.',
      404: 'The id of the sandbox is unknown, malformed or of another project.',
      409:
        'The sandbox is not running, not yet placed on a machine, or without an image manifest; a snapshot of this name ' +
        'exists; a disk snapshot of a persistent sandbox; a full one of a sandbox that could not be resumed (not persistent, ' +
        'or with volumes, a Docker data device or GPUs).',
    },
  },
  listSnapshots: {
    method: 'GET',
    path: '/snapshots',
    tag: 'Snapshots',
    summary: 'List snapshots, newest first',
    security: 'workload',
    query: PageQuery,
    items: 'snapshots',
    success: { status: 200, response: { description: 'One page.', schema: SnapshotList } },
    errors: { 400: 'The cursor is malformed.' },
  },
  getSnapshot: {
    method: 'GET',
    path: '/snapshots/:id',
    tag: 'Snapshots',
    summary: 'Read a snapshot, or wait for it',
    description:
      'With `wait`, responds at that status, or at ready or failed. After the timeout, responds with the present record ' +
      'and 200.',
    security: 'workload',
    params: SnapshotParams,
    query: SnapshotGetQuery,
    success: { status: 200, response: { description: 'The record.', schema: SnapshotRecord } },
    errors: {
      400: 'A query parameter is not valid.',
      404: unknownSnapshot,
    },
  },
  deleteSnapshot: {
    method: 'DELETE',
    path: '/snapshots/:id',
    tag: 'Snapshots',
    summary: 'Delete a snapshot',
    description:
      'Its name is free at once; its machine removes the data in the background. Sandboxes that were created from it continue.',
    security: 'workload',
    params: SnapshotParams,
    success: { status: 200, response: { description: 'Deleted.', schema: SnapshotDeleteResponse } },
    codes: ['in_use'],
    errors: {
      404: unknownSnapshot,
      409: 'Other snapshots descend from it, or a sandbox is being created from it.',
    },
  },
} as const satisfies Record<string, Operation>;

export const snapshotResource = {
  tags: {
    Snapshots:
      'Captures of a running sandbox: its disk, or its memory and disk. Create a sandbox from one with ' +
      '`POST /vms` with the image `{"type": "snapshot", "name": …}`.',
  },
  operations: snapshotOperations,
  schemas: {
    SnapshotCreate: SnapshotCreateRequest,
    SnapshotCreated: SnapshotCreateResponse,
    Snapshot: SnapshotRecord,
    SnapshotList,
  },
} as const satisfies ApiResource;
