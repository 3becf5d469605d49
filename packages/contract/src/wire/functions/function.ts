/** Functions on the wire: HTTP handlers that are started when requests arrive and end when none do. */
import { Type, type Static } from 'typebox';
import { nullable, UpdatedAt } from '../platform/fields.ts';
import { BOUNDS } from '../platform/limits.ts';
import type { ApiResource, Operation } from '../platform/operation.ts';
import { cursorKind, NextCursor, PageQuery } from '../platform/paging.ts';
import {
  FUNCTION_SNAPSHOT_KINDS,
  FUNCTION_TEMPLATE_STATES,
  FunctionConfig,
  FunctionConfigUpdate,
  functionDeployOperations,
  FunctionDeployRequest,
  FunctionDeployResponse,
  FunctionForm,
} from './deploy.ts';

export const FunctionVersionRecord = Type.Object({
  id: Type.String({ format: 'uuid' }),
  version: Type.Integer(),
  image_ref: Type.String({ description: 'The requested image.' }),
  handler: Type.Array(Type.String()),
  port: Type.Integer(),
  vcpus: Type.Integer(),
  mem_mib: Type.Integer(),
  scratch_mib: Type.Integer(),
  timeout_s: Type.Integer(),
  scaledown_window_s: Type.Integer(),
  max_concurrency: Type.Integer(),
  max_instances: nullable(Type.Integer(), 'Null: no bound.'),
  env: Type.Record(Type.String(), Type.String()),
  template_state: Type.Enum(FUNCTION_TEMPLATE_STATES, {
    description:
      '`building`: its image is built. `pending`: its first instance is being tried. `published`: it can serve. `failed`: it cannot.',
  }),
  template_error: nullable(
    Type.String(),
    'Why it failed; of a published one with `fn_ready`, why its instances start the handler instead.',
  ),
  snapshot_kind: Type.Enum(FUNCTION_SNAPSHOT_KINDS),
  build_job: nullable(Type.String({ format: 'uuid' }), 'The job that built its image.'),
  created_at: Type.String({ format: 'date-time', description: 'RFC 3339.' }),
});
export type FunctionVersionRecord = Static<typeof FunctionVersionRecord>;

/** While the image of the first version is built, nothing serves yet: the newest version is shown, with its state. */
const CURRENT = 'The version that serves requests; the newest one until the first image is built.';
const currentVersion = Type.Integer({ description: CURRENT });
const latestVersion = Type.Integer({ description: 'The newest version. See `activate` of the deploy.' });

/** `image_ref`, `template_state` and `snapshot_kind` are those of the current version. */
export const FunctionItem = Type.Object({
  id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  current_version: currentVersion,
  latest_version: latestVersion,
  image_ref: Type.String(),
  template_state: Type.Enum(FUNCTION_TEMPLATE_STATES),
  snapshot_kind: Type.Enum(FUNCTION_SNAPSHOT_KINDS),
  public: Type.Boolean(),
  created_at: Type.String({ format: 'date-time', description: 'RFC 3339.' }),
  updated_at: Type.Optional(UpdatedAt),
});
export type FunctionItem = Static<typeof FunctionItem>;

export const FunctionList = Type.Object({ functions: Type.Array(FunctionItem), next_cursor: NextCursor });
export type FunctionList = Static<typeof FunctionList>;

export const FunctionRecord = Type.Object({
  id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  created_at: Type.String({ format: 'date-time', description: 'RFC 3339.' }),
  updated_at: Type.Optional(UpdatedAt),
  current_version: Type.Object(FunctionVersionRecord.properties, { description: CURRENT }),
  latest_version: latestVersion,
  public: Type.Boolean({ description: 'Whether its public endpoint is enabled.' }),
  requires_token: Type.Boolean({ description: 'Whether its public endpoint needs a token.' }),
});
export type FunctionRecord = Static<typeof FunctionRecord>;

export const FunctionVersionList = Type.Object({
  versions: Type.Array(FunctionVersionRecord),
  next_cursor: NextCursor,
});
export type FunctionVersionList = Static<typeof FunctionVersionList>;

export const FunctionPublicUpdate = Type.Object({
  enabled: Type.Boolean({ description: 'Whether the function can be called at its public endpoint.' }),
  require_token: Type.Optional(
    Type.Boolean({ default: false, description: 'Whether callers need the token of the function.' }),
  ),
});
export type FunctionPublicUpdate = Static<typeof FunctionPublicUpdate>;

export const FunctionPublic = Type.Object({
  public: Type.Boolean(),
  url: Type.String({ description: 'Path of the public endpoint: `/fn/<project>/<name>`.' }),
  requires_token: Type.Boolean(),
  token: nullable(
    Type.String(),
    'The token, when this call has made one. It is shown once and only its digest is stored.',
  ),
});
export type FunctionPublic = Static<typeof FunctionPublic>;

export const FunctionParams = Type.Object({ name: Type.String({ description: 'Name of a function.' }) });

/** Cursors of lists of versions. */
export const FUNCTION_VERSION_CURSORS = cursorKind(14);
export const FUNCTION_CURSORS = cursorKind(16);

const unknownFunction = 'The project has no function of this name.';

export const functionOperations = {
  ...functionDeployOperations,
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
