/** The operations on functions and their versions. */
import {
  FunctionConfig,
  FunctionConfigUpdate,
  FunctionDeployRequest,
  FunctionDeployResponse,
  FunctionForm,
  FunctionList,
  FunctionParams,
  FunctionPublic,
  FunctionPublicUpdate,
  FunctionRecord,
  FunctionVersionList,
  FunctionVersionRecord,
} from './function.ts';
import { BOUNDS, LIMITS } from './platform/limits.ts';
import type { Operation, ApiResource } from './platform/operation.ts';
import { PageQuery } from './platform/paging.ts';

const unknownFunction = 'The project has no function of this name.';

export const functionOperations = {
  deployFunction: {
    method: 'POST',
    path: '/fns',
    tag: 'Functions',
    summary: 'Deploy a function, or its next version',
    description:
      'Creates an immutable version; versions of a name are numbered from 1. The first one is current at once. A later one ' +
      'becomes the current one when an instance of it has listened on its port, so that requests are never sent to a ' +
      'version that cannot serve; if it fails, the one before stays. As a form it is built from a Dockerfile: follow ' +
      '`build_job` with `GET /jobs/:id/logs?follow=1`. [functions.md](functions.md) has the details.',
    security: 'workload',
    consumes: ['application/json', 'multipart/form-data'],
    body: FunctionDeployRequest,
    form: FunctionForm,
    // Above the limit of the context, whose refusal says what it is.
    upload: { bytes: 2 * LIMITS.functionContextBytes, files: 4, fieldBytes: BOUNDS.functionFieldBytes },
    idempotent: true,
    success: { status: 200, response: { description: 'Accepted.', schema: FunctionDeployResponse } },
    codes: [
      'image_not_found',
      'image_not_ready',
      'image_failed',
      'ambiguous_reference',
      'unknown_region',
      'limit_reached',
      'quota_exceeded',
    ],
    errors: {
      400:
        'The name, the image, a number, a name in `env` or `snapshot_kind` is not valid; values are over a cap of the service; ' +
        'the project has as many functions as it may. Of a form: a part is missing, sent twice, no JSON, no tar archive or too large.',
      402: 'The organization is out of credits, and the image is to be built.',
      404: 'The image does not exist.',
      409: 'The image is not built yet, could not be built, or is still being replicated into the region of the function.',
      503: 'The service has no space for the context.',
    },
  },
  listFunctions: {
    method: 'GET',
    path: '/fns',
    tag: 'Functions',
    summary: 'List functions, newest first',
    description: 'Without `limit` and `cursor` all functions of the project.',
    security: 'workload',
    query: PageQuery,
    items: 'functions',
    success: { status: 200, response: { description: 'One page, or all.', schema: FunctionList } },
    errors: { 400: 'The cursor is malformed.' },
  },
  getFunction: {
    method: 'GET',
    path: '/fns/:name',
    tag: 'Functions',
    summary: 'Read a function and its current version',
    security: 'workload',
    params: FunctionParams,
    success: { status: 200, response: { description: 'The record.', schema: FunctionRecord } },
    errors: { 404: unknownFunction },
  },
  deleteFunction: {
    method: 'DELETE',
    path: '/fns/:name',
    tag: 'Functions',
    summary: 'Delete a function',
    description:
      'With its versions, schedules and public endpoint. Its name is free at once; its instances end, and so do invocations that ' +
      'wait or run. Its invocations stay in reports, under its former name with its id, as long as their log is kept.',
    security: 'workload',
    params: FunctionParams,
    success: { status: 204, response: { description: 'Deleted.' } },
    errors: { 404: unknownFunction },
  },
  listFunctionVersions: {
    method: 'GET',
    path: '/fns/:name/versions',
    tag: 'Functions',
    summary: 'List the versions of a function, newest first',
    description:
      'Without `limit` and `cursor` all versions; `next_cursor` is set if they are larger than about ' +
      `${BOUNDS.functionVersionListBytes / (1024 * 1024)} MiB.`,
    security: 'workload',
    params: FunctionParams,
    query: PageQuery,
    items: 'versions',
    success: { status: 200, response: { description: 'One page, or all.', schema: FunctionVersionList } },
    errors: { 400: 'The cursor is malformed.', 404: unknownFunction },
  },
  updateFunctionConfig: {
    method: 'PATCH',
    path: '/fns/:name/config',
    tag: 'Functions',
    summary: 'Change the bounds of the current version',
    description:
      'From the next invocation on, without a new version. Absent fields stay as they are; `max_instances: null` removes the bound. ' +
      'Newer versions that are being built or tried to replace the current one get the same changes. The next deploy does not inherit them.',
    security: 'workload',
    params: FunctionParams,
    body: FunctionConfigUpdate,
    success: { status: 200, response: { description: 'What holds from now on.', schema: FunctionConfig } },
    codes: ['function_version_not_found'],
    errors: {
      400: 'A number is out of its range.',
      404: `${unknownFunction} Or no version of it can serve.`,
    },
  },
  setFunctionPublic: {
    method: 'POST',
    path: '/fns/:name/public',
    tag: 'Functions',
    summary: 'Enable or disable the public endpoint of a function',
    description:
      '`POST /fn/:project/:name` then needs no API key. With `require_token`, callers send `Authorization: Bearer <token>`; the token ' +
      'is made and shown once, when this call enables it. To rotate it, disable the endpoint and enable it again.',
    security: 'workload',
    params: FunctionParams,
    body: FunctionPublicUpdate,
    idempotent: true,
    success: { status: 200, response: { description: 'What holds from now on.', schema: FunctionPublic } },
    errors: { 400: '`enabled` is missing, or a field is no boolean.', 404: unknownFunction },
  },
} as const satisfies Record<string, Operation>;

export const functionResource = {
  tags: {
    Functions:
      'HTTP handlers that run in instances, which the service starts when requests arrive and ends when none do.',
  },
  operations: functionOperations,
  schemas: {
    FunctionDeploy: FunctionDeployRequest,
    FunctionForm,
    FunctionDeployed: FunctionDeployResponse,
    FunctionConfigUpdate,
    FunctionConfig,
    FunctionPublicUpdate,
    FunctionPublic,
    Function: FunctionRecord,
    FunctionList,
    FunctionVersion: FunctionVersionRecord,
    FunctionVersionList,
  },
} as const satisfies ApiResource;
