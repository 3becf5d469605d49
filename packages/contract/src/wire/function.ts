/** Functions on the wire: HTTP handlers that are started when requests arrive and end when none do. */
import { Type, type Static, type TSchema } from 'typebox';
import { NamedSource, RegistrySource } from './storage/image.ts';
import { BOUNDS, FUNCTION_DEFAULTS, LIMITS } from './platform/limits.ts';
import { NextCursor, cursorKind } from './platform/paging.ts';
import { UpdatedAt } from './platform/fields.ts';

const nullable = <T extends TSchema>(schema: T, description: string) =>
  Type.Union([schema, Type.Null()], { description });

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
