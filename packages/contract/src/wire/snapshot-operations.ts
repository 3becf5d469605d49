/** The operations on snapshots. */
import type { Operation, ApiResource } from './platform/operation.ts';
import { PageQuery } from './platform/paging.ts';
import { SandboxParams } from './sandbox.ts';
import {
  SnapshotCreateRequest,
  SnapshotCreateResponse,
  SnapshotDeleteResponse,
  SnapshotGetQuery,
  SnapshotList,
  SnapshotParams,
  SnapshotRecord,
} from './snapshot.ts';

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
