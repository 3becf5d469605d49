/**
 * The operation table of the REST API: the server's routes, the OpenAPI document, docs/api.md and the typed client are
 * generated from it, so they cannot disagree. An operation is added when it works.
 */
import { Type, type TSchema } from 'typebox';
import { creditsOperations } from './credits-operations.ts';
import { ErrorBody, type ErrorStatus, OverloadBody } from './errors.ts';
import { SandboxForkRequest, SandboxForkResponse } from './fork.ts';
import { ImageCreateRequest, ImageCreateResponse, ImageList } from './image.ts';
import { JobParams, JobRecord } from './job.ts';
import { managementOperations } from './management-operations.ts';
import type { Operation, Security } from './operation.ts';
import { PageQuery } from './paging.ts';
import { GlobalRegionRecord, HardwareClassRecord, RegionList } from './region.ts';
import {
  LogQuery,
  SandboxCreateRequest,
  SandboxCreateResponse,
  SandboxDeleteResponse,
  SandboxGetQuery,
  SandboxLifecycleResponse,
  SandboxList,
  SandboxParams,
  SandboxRecord,
} from './sandbox.ts';
import { secretOperations } from './secret-operations.ts';
import { snapshotOperations } from './snapshot-operations.ts';
import { toolboxOperations } from './toolbox.ts';

const Text = Type.String();
const unknownSandbox = 'The id is unknown, malformed or of another project.';
const noHost = 'its host has no capacity for it, or is not connected (nothing was changed: try again later)';

export const operations = {
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
    idempotency: 'replay',
    success: { status: 200, response: { description: 'Accepted.', schema: SandboxCreateResponse } },
    errors: {
      400:
        'A field is not valid: mode, cpu (not above 0, over a cap), guarantees over the burstable caps, name or value of ' +
        'an environment variable, unknown secret, a mount path that is invalid, reserved or used twice, more than 8 ' +
        'volumes or object-store mounts, unknown region, cpu_arch, cpu_type, network_class or disk_class; a full snapshot ' +
        'outside its home region, or sizes that differ from those of the snapshot.',
      402: 'The organization is out of credits.',
      404: 'The snapshot named as image does not exist.',
      409:
        'The image, snapshot, volume or object store is not ready; the machine that has the snapshot has not been heard ' +
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
    method: 'POST',
    path: '/vms/:id/stop',
    tag: 'Sandboxes',
    summary: 'Stop a sandbox and keep its disk',
    description:
      'Processes are asked to end (the entrypoint gets SIGTERM) and killed if they do not. Confirm with ' +
      '`GET /vms/:id?wait_exact=stopped`. Idempotent. Of different concurrent calls one succeeds and the others get 409. ' +
      '[lifecycle.md](lifecycle.md) has every transition.',
    security: 'workload',
    params: SandboxParams,
    success: { status: 200, response: { description: 'Accepted.', schema: SandboxLifecycleResponse } },
    errors: {
      404: unknownSandbox,
      409: 'It is not persistent, or it is not running, booting, assigned or building.',
    },
  },
  startSandbox: {
    method: 'POST',
    path: '/vms/:id/start',
    tag: 'Sandboxes',
    summary: 'Boot a stopped or paused sandbox from its disk',
    description:
      'It gets a new address and the same environment. The saved memory of a paused sandbox is discarded. Poll ' +
      '`GET /vms/:id?wait=running`. A start that fails without damage to the disk ends in `stopped`, with `error`.',
    security: 'workload',
    params: SandboxParams,
    success: { status: 200, response: { description: 'Accepted.', schema: SandboxLifecycleResponse } },
    errors: {
      402: 'The organization is out of credits.',
      404: unknownSandbox,
      409: `It is not persistent; it is not stopped or paused; it has no bootable file system; it is already starting; ${noHost}.`,
    },
  },
  pauseSandbox: {
    method: 'POST',
    path: '/vms/:id/pause',
    tag: 'Sandboxes',
    summary: 'Pause a sandbox and save its memory',
    description:
      'Processes are frozen; memory and device state are saved beside the disk. Confirm with ' +
      '`GET /vms/:id?wait_exact=paused`. Idempotent. After a failed pause the sandbox runs, with `error`.',
    security: 'workload',
    params: SandboxParams,
    success: { status: 200, response: { description: 'Accepted.', schema: SandboxLifecycleResponse } },
    errors: {
      404: unknownSandbox,
      409: 'It is not persistent; it has volumes, a Docker data device or GPUs; it is not running.',
    },
  },
  resumeSandbox: {
    method: 'POST',
    path: '/vms/:id/resume',
    tag: 'Sandboxes',
    summary: 'Resume a paused sandbox',
    description:
      'It gets a new address, and its clock is set. Poll `GET /vms/:id?wait=running`. After a failed resume the sandbox is ' +
      '`paused`, with `error`: resume it again, or start it without its memory.',
    security: 'workload',
    params: SandboxParams,
    success: { status: 200, response: { description: 'Accepted.', schema: SandboxLifecycleResponse } },
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
    idempotency: 'replay',
    success: { status: 200, response: { description: 'Accepted.', schema: SandboxForkResponse } },
    errors: {
      400: 'The name is not valid.',
      402: 'The organization is out of credits.',
      404: unknownSandbox,
      409: `It is not persistent; it has volumes, a Docker data device or GPUs; it is not running or paused; it is paused without saved memory; another fork of it is being captured; ${noHost}.`,
    },
  },
  ...snapshotOperations,
  getConsoleLog: {
    method: 'GET',
    path: '/vms/:id/logs',
    tag: 'Sandboxes',
    summary: 'Read the console log',
    security: 'workload',
    params: SandboxParams,
    query: LogQuery,
    success: { status: 200, response: { description: 'The log.', schema: Text, contentType: 'text/plain' } },
    errors: {
      404: `${unknownSandbox} Or it has ended without a log, or it is not yet placed on a machine.`,
      502: 'The machine that has the log did not respond.',
    },
  },
  getEntrypointLog: {
    method: 'GET',
    path: '/vms/:id/entrypoint-logs',
    tag: 'Sandboxes',
    summary: "Read the output of the image's entrypoint",
    security: 'workload',
    params: SandboxParams,
    query: LogQuery,
    success: {
      status: 200,
      response: { description: 'The output.', schema: Text, contentType: 'text/plain' },
    },
    errors: {
      404: `${unknownSandbox} Or it has ended without a log, or it is not yet placed on a machine.`,
      502: 'The machine that has the log did not respond.',
    },
  },
  createImage: {
    method: 'POST',
    path: '/images',
    tag: 'Images',
    summary: 'Create an image, or replace one of the same name',
    security: 'workload',
    body: ImageCreateRequest,
    idempotency: 'replay',
    success: {
      status: 200,
      response: { description: 'Accepted; the job builds it.', schema: ImageCreateResponse },
    },
    errors: {
      400: 'Not JSON, no name, a name or source that is not valid, an unknown or disabled region.',
      503: 'The build queue is temporarily unavailable.',
    },
  },
  listImages: {
    method: 'GET',
    path: '/images',
    tag: 'Images',
    summary: 'List images, newest first',
    security: 'workload',
    query: PageQuery,
    success: { status: 200, response: { description: 'One page.', schema: ImageList } },
    errors: { 400: 'The cursor is malformed.' },
  },
  getJob: {
    method: 'GET',
    path: '/jobs/:id',
    tag: 'Jobs',
    summary: 'Read a job',
    security: 'workload',
    params: JobParams,
    success: { status: 200, response: { description: 'The record.', schema: JobRecord } },
    errors: { 404: 'The id is unknown, malformed or of another project.' },
  },
  listRegions: {
    method: 'GET',
    path: '/regions',
    tag: 'Regions',
    summary: 'List the active regions',
    security: 'workload',
    success: {
      status: 200,
      response: { description: 'All of them; there are no pages.', schema: RegionList },
    },
    errors: {},
  },
  listGlobalRegions: {
    method: 'GET',
    path: '/global-regions',
    tag: 'Regions',
    summary: 'List the global regions',
    security: 'workload',
    success: {
      status: 200,
      response: { description: 'All of them; there are no pages.', schema: Type.Array(GlobalRegionRecord) },
    },
    errors: {},
  },
  listCpuTypes: {
    method: 'GET',
    path: '/cpu-types',
    tag: 'Regions',
    summary: 'List the values of cpu_type',
    security: 'workload',
    success: {
      status: 200,
      response: { description: 'By architecture and tier.', schema: Type.Array(HardwareClassRecord) },
    },
    errors: {},
  },
  listNetworkClasses: {
    method: 'GET',
    path: '/network-classes',
    tag: 'Regions',
    summary: 'List the values of network_class',
    security: 'workload',
    success: {
      status: 200,
      response: { description: 'By tier.', schema: Type.Array(HardwareClassRecord) },
    },
    errors: {},
  },
  listDiskClasses: {
    method: 'GET',
    path: '/disk-classes',
    tag: 'Regions',
    summary: 'List the values of disk_class',
    security: 'workload',
    success: {
      status: 200,
      response: { description: 'By tier.', schema: Type.Array(HardwareClassRecord) },
    },
    errors: {},
  },
  ...secretOperations,
  ...managementOperations,
  ...creditsOperations,
  getHealth: {
    method: 'GET',
    path: '/healthz',
    tag: 'Service',
    summary: 'Check whether a sandbox can be created',
    security: 'public',
    rateLimited: false,
    success: {
      status: 200,
      response: { description: 'It can.', schema: Type.Object({ status: Type.String() }) },
    },
    errors: { 503: 'No sandbox can be created now.' },
  },
  getLiveness: {
    method: 'GET',
    path: '/livez',
    tag: 'Service',
    summary: 'Is the server alive?',
    description: 'Liveness: for a supervisor that restarts a server that hangs.',
    security: 'public',
    rateLimited: false,
    success: {
      status: 200,
      response: { description: 'It answers.', schema: Type.Object({ status: Type.Literal('ok') }) },
    },
    errors: {},
  },
  getReadiness: {
    method: 'GET',
    path: '/readyz',
    tag: 'Service',
    summary: 'Check whether the server can handle API requests',
    description:
      'Readiness, for load balancers: the database is reachable. `/healthz` checks whether a sandbox can be created.',
    security: 'public',
    rateLimited: false,
    success: {
      status: 200,
      response: { description: 'It can.', schema: Type.Object({ status: Type.Literal('ok') }) },
    },
    errors: { 503: 'The database cannot be reached.' },
  },
  getOpenApi: {
    method: 'GET',
    path: '/openapi.json',
    tag: 'Service',
    summary: 'This API as an OpenAPI 3.1 document',
    security: 'public',
    success: {
      status: 200,
      response: {
        description: 'The document.',
        schema: Type.Object({ openapi: Type.String() }, { additionalProperties: true }),
      },
    },
    errors: {},
  },
} as const satisfies Record<string, Operation>;

export type OperationId = keyof typeof operations;

/** All operations with their ids, in the order of the documents: the control plane's, then the toolbox's. */
export function listOperations(): [string, Operation][] {
  return Object.entries<Operation>({ ...operations, ...toolboxOperations });
}

const TOO_MANY = 'More requests than one API key or one organization may make in a minute.';
const UNAUTHORIZED: Partial<Record<Security, string>> = {
  workload: 'No API key, or an invalid one.',
  sandbox: 'No API key or access token of the sandbox, or an invalid one.',
  management: 'No OIDC token, or an invalid one. An API key is not accepted here.',
  operator: 'No operator credential, or an invalid one.',
  runner: 'No runner credential, or an invalid one.',
};

/** Errors of the control plane's HTTP layer, before an operation's handler. */
function genericErrors(operation: Operation): [ErrorStatus, string][] {
  const { security, method, query, idempotency } = operation;
  const found: [ErrorStatus, string][] = [];
  if (query !== undefined) found.push([400, 'A query parameter is not valid, or is given more than once.']);
  if (operation.params !== undefined && 'refusal' in operation.params && operation.params.refusal === 400)
    found.push([400, 'The name in the path is not valid.']);
  if (method !== 'GET') found.push([400, 'The body is not valid JSON, or too large.']);
  if (idempotency !== undefined) {
    found.push([400, 'The Idempotency-Key is not valid.']);
    found.push([
      409,
      'The Idempotency-Key was used for another request, or its first request is still in progress.',
    ]);
  }
  if (security === 'workload' || security === 'management') found.push([429, TOO_MANY]);
  if (security === 'public' && operation.rateLimited !== false)
    found.push([429, 'More requests than one address without valid credentials may make in a minute.']);
  found.push([503, 'A part of the service is temporarily unavailable: try again.']);
  if (security === 'management')
    found.push([503, "The issuer's keys cannot be fetched, or the server has no issuer of tokens."]);
  return found;
}

/** Every error of an operation, with its meaning there. */
export function operationErrors(operation: Operation): [ErrorStatus, string][] {
  const all = new Map<ErrorStatus, string[]>();
  const add = (status: ErrorStatus, text: string): void => {
    const known = all.get(status) ?? [];
    if (!known.includes(text)) all.set(status, [...known, text]);
  };
  const unauthorized = UNAUTHORIZED[operation.security];
  if (unauthorized !== undefined) add(401, unauthorized);
  for (const [status, text] of Object.entries(operation.errors)) add(Number(status) as ErrorStatus, text);
  // The toolbox is served by the gateway.
  if (operation.server === undefined)
    for (const [status, text] of genericErrors(operation)) add(status, text);
  add(500, 'An internal error.');
  return [...all]
    .map(([status, texts]): [ErrorStatus, string] => [status, texts.join(' ')])
    .sort(([a], [b]) => a - b);
}

/** The body of an error. */
export function errorSchema(status: ErrorStatus): TSchema {
  return status === 429 ? OverloadBody : ErrorBody;
}
