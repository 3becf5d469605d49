/** Sandboxes: their lists and reads, what changes their state, forks and leases. */
import { Type, type Static } from 'typebox';
import { UNKNOWN_ID } from '../platform/fields.ts';
import { BOUNDS } from '../platform/limits.ts';
import type { ApiResource, Operation } from '../platform/operation.ts';
import { cursorKind, NextCursor, PageQuery, TimeoutParam } from '../platform/paging.ts';
import {
  sandboxCreateOperations,
  SandboxCreateRequest,
  SandboxCreateResponse,
  SandboxLease,
  SandboxLeaseRequest,
} from './sandbox-create.ts';
import { EgressDenialList, sandboxLogOperations } from './sandbox-logs.ts';
import { SANDBOX_STATUSES, SandboxParams, SandboxRecord, SandboxStatus } from './sandbox-record.ts';

export const SandboxList = Type.Object({ vms: Type.Array(SandboxRecord), next_cursor: NextCursor });
export type SandboxList = Static<typeof SandboxList>;

export const SandboxGetQuery = Type.Object({
  wait: Type.Optional(SandboxStatus),
  wait_exact: Type.Optional(SandboxStatus),
  timeout_ms: Type.Optional(TimeoutParam),
});
export type SandboxGetQuery = Static<typeof SandboxGetQuery>;

export const SandboxLifecycleResponse = Type.Object({
  vm_id: Type.String(),
  status: Type.Enum(SANDBOX_STATUSES, {
    description: 'The present status: transient, or already the requested one if the call was repeated.',
  }),
});
export type SandboxLifecycleResponse = Static<typeof SandboxLifecycleResponse>;

export const SandboxDeleteResponse = Type.Object({ vm_id: Type.String(), status: SandboxStatus });
export type SandboxDeleteResponse = Static<typeof SandboxDeleteResponse>;

/** Cursors of lists of sandboxes. */
export const SANDBOX_CURSORS = cursorKind(1);

export const SandboxForkRequest = Type.Object({
  name: Type.Optional(
    Type.String({ maxLength: BOUNDS.displayNameChars, description: 'Default `<name of the source>-fork`.' }),
  ),
});
export type SandboxForkRequest = Static<typeof SandboxForkRequest>;

export const SandboxForkResponse = Type.Object({
  ...SandboxCreateResponse.properties,
  forked_from: Type.String({ description: 'Id of the source.' }),
});
export type SandboxForkResponse = Static<typeof SandboxForkResponse>;

const noHost = 'its host has no capacity for it, or is not connected (nothing was changed: try again later)';

/** A call that changes the desired state of a sandbox. */
const lifecycleCall = {
  method: 'POST',
  tag: 'Sandboxes',
  security: 'workload',
  params: SandboxParams,
  success: { status: 200, response: { description: 'Accepted.', schema: SandboxLifecycleResponse } },
} as const;

export const sandboxOperations = {
  ...sandboxCreateOperations,
  listSandboxes: {
    method: 'GET',
    path: '/vms',
    tag: 'Sandboxes',
    summary: 'List sandboxes, newest first',
    security: 'workload',
    query: PageQuery,
    items: 'vms',
    success: { status: 200, response: { description: 'One page.', schema: SandboxList } },
    errors: { 400: 'The cursor is malformed.' },
  },
  getSandbox: {
    method: 'GET',
    path: '/vms/:id',
    tag: 'Sandboxes',
    summary: 'Read a sandbox, or wait for a status',
    description:
      'With `wait`, responds when the sandbox reaches that status, or one from which it may never do so: stopping, stopped, ' +
      'deleting, deleted, failed, lost. With `wait_exact`, which takes precedence, only when it reaches exactly that status, ' +
      'or failed or lost. After the timeout, responds with the present record and 200.',
    security: 'workload',
    params: SandboxParams,
    query: SandboxGetQuery,
    success: { status: 200, response: { description: 'The record.', schema: SandboxRecord } },
    errors: { 400: 'A query parameter is not valid.', 404: UNKNOWN_ID },
  },
  deleteSandbox: {
    method: 'DELETE',
    path: '/vms/:id',
    tag: 'Sandboxes',
    summary: 'Delete a sandbox',
    description: 'Idempotent. A sandbox without resources on a host is deleted at once.',
    security: 'workload',
    params: SandboxParams,
    success: { status: 200, response: { description: 'Accepted.', schema: SandboxDeleteResponse } },
    errors: { 404: UNKNOWN_ID },
  },
  stopSandbox: {
    ...lifecycleCall,
    path: '/vms/:id/stop',
    summary: 'Stop a sandbox and keep its disk',
    description:
      'Processes are asked to end (the entrypoint gets SIGTERM) and killed if they do not. Confirm with ' +
      '`GET /vms/:id?wait_exact=stopped`. Idempotent. Of different concurrent calls one succeeds and the others get 409. ' +
      '[lifecycle.md](lifecycle.md) has every transition.',
    codes: ['not_persistent', 'wrong_state', 'concurrent_change'],
    errors: {
      404: UNKNOWN_ID,
      409: 'It is not persistent, or it is not running, booting, assigned or building.',
    },
  },
  startSandbox: {
    ...lifecycleCall,
    path: '/vms/:id/start',
    summary: 'Boot a stopped or paused sandbox from its disk',
    description:
      'It gets a new address and the same environment. The saved memory of a paused sandbox is discarded. Poll ' +
      '`GET /vms/:id?wait=running`. A start that fails without damage to the disk ends in `stopped`, with `error`.',
    codes: ['not_persistent', 'wrong_state', 'no_capacity', 'concurrent_change', 'quota_exceeded'],
    errors: {
      402: 'The organization is out of credits.',
      404: UNKNOWN_ID,
      409: `It is not persistent; it is not stopped or paused; it has no bootable file system; it is already starting; ${noHost}.`,
    },
  },
  pauseSandbox: {
    ...lifecycleCall,
    path: '/vms/:id/pause',
    summary: 'Pause a sandbox and save its memory',
    description:
      'Processes are frozen; memory and device state are saved beside the disk. Confirm with ' +
      '`GET /vms/:id?wait_exact=paused`. Idempotent. After a failed pause the sandbox runs, with `error`.',
    codes: ['not_persistent', 'wrong_state', 'concurrent_change'],
    errors: {
      404: UNKNOWN_ID,
      409: 'It is not persistent; it has volumes, a Docker data device or GPUs; it is not running.',
    },
  },
  resumeSandbox: {
    ...lifecycleCall,
    path: '/vms/:id/resume',
    summary: 'Resume a paused sandbox',
    description:
      'It gets a new address, and its clock is set. Poll `GET /vms/:id?wait=running`. After a failed resume the sandbox is ' +
      '`paused`, with `error`: resume it again, or start it without its memory.',
    codes: ['not_persistent', 'wrong_state', 'no_capacity', 'concurrent_change', 'quota_exceeded'],
    errors: {
      402: 'The organization is out of credits.',
      404: UNKNOWN_ID,
      409: `It is not persistent; it is not paused; it has no saved memory (use start); it is already resuming; ${noHost}.`,
    },
  },
  forkSandbox: {
    method: 'POST',
    path: '/vms/:id/fork',
    tag: 'Sandboxes',
    summary: 'Fork a sandbox with its memory and disk',
    description:
      'The new sandbox has the memory and disk of the source, and its own identity, access token and addresses. A running ' +
      'source is paused for a moment, and its fork becomes `running`; the fork of a paused source becomes `paused`. Sizes, ' +
      'environment, ports, egress policy and tier are inherited. A fork that was captured but could not be resumed is ' +
      '`paused`, with `error`.',
    security: 'workload',
    params: SandboxParams,
    body: SandboxForkRequest,
    idempotent: true,
    success: { status: 200, response: { description: 'Accepted.', schema: SandboxForkResponse } },
    codes: ['not_persistent', 'wrong_state', 'no_capacity', 'concurrent_change', 'quota_exceeded'],
    errors: {
      400: 'The name is not valid.',
      402: 'The organization is out of credits.',
      404: UNKNOWN_ID,
      409: `It is not persistent; it has volumes, a Docker data device or GPUs; it is not running or paused; it is paused without saved memory; another fork of it is being captured; ${noHost}.`,
    },
  },
  leaseSandbox: {
    method: 'PUT',
    path: '/vms/:id/lease',
    tag: 'Sandboxes',
    summary: 'Renew or end the lease of a sandbox',
    description:
      'A sandbox with a lease is deleted when it expires, with that reason in `error`. Renew it after a third of its time: an outage ' +
      'must not be longer than the rest. A service that was away deletes none in its first minute. Forks have no lease.',
    security: 'workload',
    params: SandboxParams,
    body: SandboxLeaseRequest,
    success: { status: 200, response: { description: 'Set.', schema: SandboxLease } },
    errors: {
      400: 'lease_s is not valid.',
      404: `${UNKNOWN_ID} Or it was deleted.`,
    },
  },
  ...sandboxLogOperations,
} as const satisfies Record<string, Operation>;

export const sandboxResource = {
  tags: {
    Sandboxes:
      'Micro-VMs: created from an image or a snapshot, read, awaited, stopped and started, paused and resumed, forked, deleted.',
  },
  operations: sandboxOperations,
  schemas: {
    SandboxCreate: SandboxCreateRequest,
    SandboxCreated: SandboxCreateResponse,
    Sandbox: SandboxRecord,
    SandboxList,
    SandboxChanging: SandboxLifecycleResponse,
    SandboxFork: SandboxForkRequest,
    SandboxForked: SandboxForkResponse,
    SandboxLeaseChange: SandboxLeaseRequest,
    SandboxLease,
    EgressDenialList,
  },
} as const satisfies ApiResource;
