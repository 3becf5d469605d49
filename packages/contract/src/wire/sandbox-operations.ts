/** The operations on sandboxes. */
import { Type } from 'typebox';
import { EgressDenialList, EgressDenialQuery } from './egress-denial.ts';
import { SandboxForkRequest, SandboxForkResponse } from './fork.ts';
import type { Operation, ApiResource } from './platform/operation.ts';
import { PageQuery } from './platform/paging.ts';
import {
  LogQuery,
  SandboxCreateRequest,
  SandboxCreateResponse,
  SandboxDeleteResponse,
  SandboxGetQuery,
  SandboxLease,
  SandboxLeaseRequest,
  SandboxLifecycleResponse,
  SandboxList,
  SandboxParams,
  SandboxRecord,
} from './sandbox.ts';

const Text = Type.String();
const unknownSandbox = 'The id is unknown, malformed or of another project.';
const noHost = 'its host has no capacity for it, or is not connected (nothing was changed: try again later)';

/** A call that changes the desired state of a sandbox. */
const lifecycleCall = {
  method: 'POST',
  tag: 'Sandboxes',
  security: 'workload',
  params: SandboxParams,
  success: { status: 200, response: { description: 'Accepted.', schema: SandboxLifecycleResponse } },
} as const;

/** A log as text. */
const log = (description: string) =>
  ({
    method: 'GET',
    tag: 'Sandboxes',
    security: 'workload',
    params: SandboxParams,
    query: LogQuery,
    success: { status: 200, response: { description, schema: Text, contentType: 'text/plain' } },
    codes: ['log_not_found'],
    errors: {
      404: `${unknownSandbox} Or it has ended without a log, or it is not yet placed on a machine.`,
      502: 'The machine that has the log did not respond.',
    },
  }) as const;

export const sandboxOperations = {
  createSandbox: {
    method: 'POST',
    path: '/vms',
    tag: 'Sandboxes',
    summary: 'Create a sandbox',
    description:
      'Responds as soon as the create is recorded. Follow it with `GET /vms/:id?wait=running`, or through its job. ' +
      'Sizes below the minimum of the platform are raised to it; unknown fields are ignored. From a snapshot, the default ' +
      'region is that of the snapshot, and `scratch_mib` is fixed. From a full snapshot, the sandbox resumes the captured ' +
      'memory, is persistent, has the same cores and memory, and by default the environment, ports and egress policy of the ' +
      'captured sandbox.',
    security: 'workload',
    body: SandboxCreateRequest,
    idempotent: true,
    success: { status: 200, response: { description: 'Accepted.', schema: SandboxCreateResponse } },
    codes: [
      'image_not_found',
      'snapshot_not_found',
      'volume_not_found',
      'object_store_not_found',
      'secret_not_found',
      'unknown_region',
      'ambiguous_reference',
      'limit_reached',
      'image_not_ready',
      'image_failed',
      'snapshot_not_ready',
      'snapshot_failed',
      'host_lost',
      'no_capacity',
      'in_use',
      'secret_missing',
      'concurrent_change',
      'quota_exceeded',
    ],
    errors: {
      400:
        'A field is not valid: mode, cpu (not above 0, over a cap), guarantees over the burstable caps, name or value of ' +
        'an environment variable, unknown secret, a mount path that is invalid, reserved or used twice, more than 8 ' +
        'volumes or object-store mounts, unknown region, cpu_arch, cpu_type, network_class or disk_class; a full snapshot ' +
        'outside its home region, or sizes that differ from those of the snapshot.',
      402: 'The organization is out of credits.',
      404: 'The snapshot named as image, a volume or an object store does not exist.',
      409:
        'The image, snapshot, volume or object store is not ready, or the credentials of the store were deleted; the machine that has the snapshot has not been heard ' +
        'from, is being drained, or cannot run it (another VMM or CPU); a disk snapshot is not in that region.',
      429:
        'The create queue is full, or more requests were sent than one API key or one organization may ' +
        'make in a minute. Nothing was created.',
      503: 'The queue is temporarily unavailable. Nothing was created.',
    },
  },
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
    errors: { 400: 'A query parameter is not valid.', 404: unknownSandbox },
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
    errors: { 404: unknownSandbox },
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
      404: unknownSandbox,
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
      404: unknownSandbox,
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
      404: unknownSandbox,
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
      404: unknownSandbox,
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
      404: unknownSandbox,
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
      404: `${unknownSandbox} Or it was deleted.`,
    },
  },
  getConsoleLog: { ...log('The log.'), path: '/vms/:id/logs', summary: 'Read the console log' },
  getEntrypointLog: {
    ...log('The output.'),
    path: '/vms/:id/entrypoint-logs',
    summary: "Read the output of the image's entrypoint",
  },
  listDeniedEgress: {
    method: 'GET',
    path: '/vms/:id/egress/denied',
    tag: 'Sandboxes',
    summary: 'List what the sandbox was not allowed to send, newest first',
    description:
      'Connections, packets and DNS queries that its egress policy or the rules of its host denied, aggregated by ' +
      'destination and reason. The log is kept by the host with the logs of the sandbox, also when it is stopped, and is bounded: ' +
      '[network.md](network.md#denied-connections) explains the reasons and the bounds.',
    security: 'workload',
    params: SandboxParams,
    query: EgressDenialQuery,
    items: 'denied',
    success: { status: 200, response: { description: 'One page.', schema: EgressDenialList } },
    codes: ['wrong_state'],
    errors: {
      400: 'The cursor is malformed.',
      404: unknownSandbox,
      409: 'No host has a log: the sandbox has not been placed, or its logs were removed.',
      502: 'The machine of the sandbox did not respond.',
    },
  },
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
