/**
 * Sandboxes in the wire protocol of `@daytonaio/sdk` 0.190.x. Field names, units and optional fields are the protocol's:
 * its generated clients refuse a required field that is null or absent, and optional ones are left out rather than null.
 */
import { Type, type Static } from 'typebox';
import { BOUNDS } from '../wire/platform/limits.ts';
import { COMPAT_LIMITS } from './limits.ts';

export const COMPAT_SANDBOX_STATES = [
  'creating',
  'building_snapshot',
  'pulling_snapshot',
  'starting',
  'started',
  'stopping',
  'stopped',
  'pausing',
  'paused',
  'destroying',
  'destroyed',
  'error',
] as const;
export type CompatSandboxState = (typeof COMPAT_SANDBOX_STATES)[number];

const Labels = Type.Record(Type.String(), Type.String());
const Gib = Type.Number({ minimum: 0, maximum: 1_000_000, description: 'GiB. 0: the default.' });

export const CompatBuildInfo = Type.Object({
  dockerfileContent: Type.String({ minLength: 1, maxLength: BOUNDS.dockerfileChars }),
  contextHashes: Type.Optional(Type.Array(Type.String())),
});

const CompatVolume = Type.Object({ volumeId: Type.Optional(Type.String()) });

/** Two years. */
const MINUTES_MAX = 1_051_200;
const Minutes = { minimum: 0, maximum: MINUTES_MAX } as const;

export const CompatSandboxCreate = Type.Object({
  name: Type.Optional(Type.String({ minLength: 1, maxLength: BOUNDS.displayNameChars })),
  snapshot: Type.Optional(Type.String({ maxLength: 512 })),
  buildInfo: Type.Optional(CompatBuildInfo),
  user: Type.Optional(Type.String()),
  env: Type.Optional(Type.Record(Type.String(), Type.String({ writeOnly: true }))),
  labels: Type.Optional(Labels),
  target: Type.Optional(Type.String({ maxLength: 128 })),
  cpu: Type.Optional(Type.Integer({ minimum: 0, maximum: 1024 })),
  gpu: Type.Optional(Type.Integer({ minimum: 0, maximum: BOUNDS.gpusPerSandbox })),
  gpuType: Type.Optional(Type.Array(Type.String())),
  memory: Type.Optional(Gib),
  disk: Type.Optional(Gib),
  volumes: Type.Optional(Type.Array(CompatVolume)),
  networkBlockAll: Type.Optional(Type.Boolean()),
  networkAllowList: Type.Optional(Type.String({ maxLength: 64 * 1024 })),
  domainAllowList: Type.Optional(Type.String({ maxLength: 64 * 1024 })),
  linkedSandbox: Type.Optional(Type.String()),
  autoStopInterval: Type.Optional(
    Type.Integer({ ...Minutes, description: 'Minutes without activity after which it stops. 0: never.' }),
  ),
  autoArchiveInterval: Type.Optional(
    Type.Integer({ ...Minutes, description: 'Returned. What has stopped has no disk to archive.' }),
  ),
  autoDeleteInterval: Type.Optional(
    Type.Integer({
      minimum: -MINUTES_MAX,
      maximum: MINUTES_MAX,
      description: 'Minutes after its stop. 0: at its stop. Negative: never.',
    }),
  ),
  ttlMinutes: Type.Optional(
    Type.Integer({ ...Minutes, description: 'Minutes after its creation, in any state. 0: never.' }),
  ),
  // Refused where they are set.
  autoPauseInterval: Type.Optional(Type.Integer()),
  kvm: Type.Optional(Type.Boolean()),
  spot: Type.Optional(Type.Boolean()),
  secrets: Type.Optional(Type.Array(Type.Unknown())),
  outboundProxyUrl: Type.Optional(Type.String()),
  otelEndpointOverride: Type.Optional(Type.String()),
});
export type CompatSandboxCreate = Static<typeof CompatSandboxCreate>;

const item = {
  id: Type.String(),
  organizationId: Type.String(),
  name: Type.String(),
  snapshot: Type.Optional(Type.String()),
  user: Type.String(),
  labels: Labels,
  public: Type.Boolean(),
  networkBlockAll: Type.Boolean(),
  kvm: Type.Boolean(),
  target: Type.String(),
  cpu: Type.Number(),
  gpu: Type.Number(),
  memory: Type.Number(),
  disk: Type.Number(),
  state: Type.Enum(COMPAT_SANDBOX_STATES),
  desiredState: Type.Enum(['started', 'stopped', 'paused', 'destroyed'] as const),
  errorReason: Type.Optional(Type.String()),
  recoverable: Type.Boolean(),
  backupState: Type.Literal('None'),
  autoStopInterval: Type.Integer(),
  autoArchiveInterval: Type.Integer(),
  autoDeleteInterval: Type.Integer(),
  autoDestroyAt: Type.Optional(
    Type.String({ format: 'date-time', description: 'When it ends in any case.' }),
  ),
  createdAt: Type.String({ format: 'date-time' }),
  updatedAt: Type.String({ format: 'date-time' }),
  lastActivityAt: Type.String({ format: 'date-time' }),
  sandboxClass: Type.Literal('linux-vm'),
  runnerId: Type.Optional(Type.String()),
  toolboxProxyUrl: Type.String({ description: 'Without the id of the sandbox.' }),
};

/** In lists. */
export const CompatSandboxItem = Type.Object(item);
export type CompatSandboxItem = Static<typeof CompatSandboxItem>;

export const CompatBuildInfoRecord = Type.Object({
  dockerfileContent: Type.String(),
  contextHashes: Type.Array(Type.String()),
  createdAt: Type.String({ format: 'date-time' }),
  updatedAt: Type.String({ format: 'date-time' }),
  snapshotRef: Type.String(),
});
export type CompatBuildInfoRecord = Static<typeof CompatBuildInfoRecord>;

export const CompatSandbox = Type.Object({
  ...item,
  env: Type.Record(Type.String(), Type.String()),
  networkAllowList: Type.Optional(Type.String()),
  domainAllowList: Type.Optional(Type.String()),
  volumes: Type.Array(Type.Unknown()),
  buildInfo: Type.Optional(CompatBuildInfoRecord),
});
export type CompatSandbox = Static<typeof CompatSandbox>;

export const CompatSandboxList = Type.Object({
  items: Type.Array(CompatSandboxItem),
  nextCursor: Type.Union([Type.String(), Type.Null()]),
});

export const CompatSandboxParams = Type.Object({ id: Type.String({ description: 'Id or name.' }) });

export const CompatPortParams = Type.Object(
  {
    id: Type.String({ description: 'Id or name.' }),
    port: Type.Integer({ minimum: 1, maximum: 65_535 }),
  },
  // An unknown sandbox is a 404, an invalid port a 400.
  { refusal: 400 },
);

export const CompatLinkParams = Type.Object(
  { ...CompatPortParams.properties, token: Type.String({ description: 'Of the signed preview URL.' }) },
  { refusal: 400 },
);

export const CompatSignedPreviewQuery = Type.Object({
  expiresInSeconds: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: COMPAT_LIMITS.previewSecondsMax,
      default: COMPAT_LIMITS.previewSeconds,
    }),
  ),
});

export const CompatPreviewUrl = Type.Object({
  sandboxId: Type.String(),
  url: Type.String(),
  token: Type.String(),
});

export const CompatSignedPreviewUrl = Type.Object({
  sandboxId: Type.String(),
  port: Type.Integer(),
  url: Type.String(),
  token: Type.String(),
});

export const CompatEmpty = Type.Object({});

export const CompatUrl = Type.Object({ url: Type.String() });
