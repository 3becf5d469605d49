/** The deploy of a function, and which of its settings may be changed in place. */
import { Type, type Static } from 'typebox';
import { nullable } from '../platform/fields.ts';
import { BOUNDS, FUNCTION_DEFAULTS, LIMITS } from '../platform/limits.ts';
import type { Operation } from '../platform/operation.ts';
import { NamedSource, RegistrySource } from '../storage/image.ts';

export const FUNCTION_SNAPSHOT_KINDS = ['pre_entrypoint', 'fn_ready'] as const;
export type FunctionSnapshotKind = (typeof FUNCTION_SNAPSHOT_KINDS)[number];

/**
 * `building`: its image is built. `pending`: its first instance is being tried. `published`: it can serve. `failed`: it cannot, and
 * `template_error` says why.
 */
export const FUNCTION_TEMPLATE_STATES = ['building', 'pending', 'published', 'failed'] as const;
export type FunctionTemplateState = (typeof FUNCTION_TEMPLATE_STATES)[number];

/** When a version becomes the current one. `now`: with its deploy, or when its image is built. `when_ready`: when it can serve. */
export const FUNCTION_ACTIVATIONS = ['now', 'when_ready'] as const;
export type FunctionActivation = (typeof FUNCTION_ACTIVATIONS)[number];

const FUNCTION_NAME = '^[a-z0-9]([a-z0-9-]*[a-z0-9])?$';
const FunctionName = Type.String({
  minLength: 1,
  maxLength: LIMITS.functionNameChars,
  pattern: FUNCTION_NAME,
  expected:
    `1 to ${LIMITS.functionNameChars} characters of a-z 0-9 - that start and end with a letter or digit ` +
    '([a-z0-9]([a-z0-9-]*[a-z0-9])?)',
  description: 'Unique in the project. Posting a name again creates its next version.',
});

/** The field `image` of a deploy, in words. */
export const FUNCTION_IMAGE_FORM =
  'an image name, a registry reference (it has a "/" or a ":"), or an object {type: "registry", ref} or {type: "named", name}';

const int = (minimum: number, maximum: number, initial: number | undefined, description: string) =>
  Type.Integer({ minimum, maximum, ...(initial === undefined ? {} : { default: initial }), description });

/** What may be changed in place; of a deploy with their defaults. */
const timeout = (initial?: number) =>
  int(
    LIMITS.functionTimeoutMin,
    LIMITS.functionTimeoutMax,
    initial,
    'Longest time of one invocation, in seconds.',
  );
const scaledownWindow = (initial?: number) =>
  int(
    LIMITS.functionScaledownMin,
    BOUNDS.int32,
    initial,
    'How long an instance without requests is kept, in seconds; at most 3,600 unless the operator has set another limit.',
  );
const maxConcurrency = (initial?: number) =>
  int(1, BOUNDS.int32, initial, 'Most requests at a time of one instance.');
const maxInstances = int(1, BOUNDS.int32, undefined, 'Most instances at a time. Null: no bound.');

/** Fields that both forms of a deploy have. */
const settings = {
  handler: Type.Optional(
    Type.Array(Type.String({ maxLength: BOUNDS.handlerBytes }), {
      maxItems: BOUNDS.handlerArguments,
      default: [],
      description:
        'Program and arguments that start the HTTP server, instead of the entrypoint and command of the image. Empty: these.',
    }),
  ),
  port: Type.Optional(
    int(
      LIMITS.portMin,
      LIMITS.portMax,
      FUNCTION_DEFAULTS.port,
      'Where the handler listens. It has it in the variable `RLP_FN_PORT`.',
    ),
  ),
  vcpus: Type.Optional(
    int(LIMITS.functionVcpusMin, BOUNDS.int32, FUNCTION_DEFAULTS.vcpus, 'Cores that an instance sees.'),
  ),
  mem_mib: Type.Optional(
    int(LIMITS.functionMemMibMin, BOUNDS.int32, FUNCTION_DEFAULTS.memMib, 'Memory of an instance, in MiB.'),
  ),
  scratch_mib: Type.Optional(
    int(
      LIMITS.functionScratchMibMin,
      BOUNDS.int32,
      FUNCTION_DEFAULTS.scratchMib,
      'Size of the writable disk of an instance, in MiB.',
    ),
  ),
  timeout_s: Type.Optional(timeout(FUNCTION_DEFAULTS.timeoutS)),
  scaledown_window_s: Type.Optional(scaledownWindow(FUNCTION_DEFAULTS.scaledownWindowS)),
  max_concurrency: Type.Optional(maxConcurrency(FUNCTION_DEFAULTS.maxConcurrency)),
  max_instances: Type.Optional(maxInstances),
  env: Type.Optional(
    Type.Record(Type.String(), Type.String({ writeOnly: true }), {
      description:
        'Environment of the handler, which reads of the function show. Names match `[A-Za-z_][A-Za-z0-9_]*`; ' +
        `at most ${BOUNDS.functionEnvBytes / 1024} KiB in total.`,
    }),
  ),
  snapshot_kind: Type.Optional(
    Type.Enum(FUNCTION_SNAPSHOT_KINDS, {
      default: FUNCTION_DEFAULTS.snapshotKind,
      description:
        '`pre_entrypoint`: an instance starts the handler. `fn_ready`: it is restored from memory in which the handler listens ' +
        'already, or starts it where there is no such memory.',
    }),
  ),
  activate: Type.Optional(
    Type.Enum(FUNCTION_ACTIVATIONS, {
      default: FUNCTION_DEFAULTS.activate,
      description:
        'When the version becomes the current one. `now`: with this request, or as soon as its image is built. `when_ready`: when ' +
        'an instance of it has listened; until then, and if it fails, the version before serves.',
    }),
  ),
};

export const FunctionDeployRequest = Type.Object({
  name: FunctionName,
  image: Type.Union([Type.String(), RegistrySource, NamedSource], {
    expected: FUNCTION_IMAGE_FORM,
    description: 'A bare string with a `/` or a `:` is a registry reference, any other an image name.',
  }),
  ...settings,
});
export type FunctionDeployRequest = Static<typeof FunctionDeployRequest>;

/** The part `config` of a form: the fields of a deploy except its name and image. */
export const FunctionFormConfig = Type.Object(settings);
export type FunctionFormConfig = Static<typeof FunctionFormConfig>;

/** The same as a multipart form, for an image that is built from a Dockerfile. Any part may be sent as a file. */
export const FunctionForm = Type.Object({
  name: FunctionName,
  dockerfile: Type.Optional(
    Type.String({
      default: 'Dockerfile',
      description:
        'The text of the Dockerfile, or its path in the context. A text starts with `FROM`, `ARG` or `#`, or has several lines.',
    }),
  ),
  config: Type.Optional(
    Type.String({
      default: '{}',
      description: 'A JSON object with the other fields: `handler`, `port`, and those after them.',
    }),
  ),
  context: Type.Optional(
    Type.String({
      format: 'binary',
      description:
        'A file: the build context, a tar archive, plain or gzip, of at most 8 MiB. May be left out with the text of a Dockerfile.',
    }),
  ),
});
export type FunctionForm = Static<typeof FunctionForm>;

export const FunctionDeployResponse = Type.Object({
  function_id: Type.String({ format: 'uuid' }),
  version_id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  version: Type.Integer(),
  image_ref: Type.String({ description: 'The requested image.' }),
  build_job: Type.Union([Type.String({ format: 'uuid' }), Type.Null()], {
    description: 'The job that builds its image; null when nothing is built.',
  }),
  template_state: Type.Enum(FUNCTION_TEMPLATE_STATES),
  current_version: Type.Integer({
    description:
      'The current version after this request: this one, or the one that serves until this one does.',
  }),
});
export type FunctionDeployResponse = Static<typeof FunctionDeployResponse>;

/** In place on the current version, and on newer ones that are to replace it. */
export const FunctionConfigUpdate = Type.Object({
  max_concurrency: Type.Optional(maxConcurrency()),
  max_instances: Type.Optional(
    Type.Union([maxInstances, Type.Null()], {
      description: 'Most instances at a time; null removes the bound.',
    }),
  ),
  timeout_s: Type.Optional(timeout()),
  scaledown_window_s: Type.Optional(scaledownWindow()),
});
export type FunctionConfigUpdate = Static<typeof FunctionConfigUpdate>;

export const FunctionConfig = Type.Object({
  version: Type.Integer({
    description: 'The current version. Newer versions that are to replace it have the changes too.',
  }),
  max_concurrency: Type.Integer(),
  scaledown_window_s: Type.Integer(),
  timeout_s: Type.Integer(),
  max_instances: nullable(Type.Integer(), 'Null: no bound.'),
});
export type FunctionConfig = Static<typeof FunctionConfig>;

export const functionDeployOperations = {
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
} as const satisfies Record<string, Operation>;
