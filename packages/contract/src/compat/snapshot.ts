/** Snapshots in the wire protocol of `@daytonaio/sdk` 0.190.x: images that sandboxes start from. */
import { Type, type Static } from 'typebox';
import { COMPAT_LIMITS } from './limits.ts';
import { CompatBuildInfo, CompatBuildInfoRecord } from './sandbox.ts';

export const COMPAT_SNAPSHOT_STATES = [
  'pending',
  'building',
  'pulling',
  'active',
  'error',
  'build_failed',
] as const;
export type CompatSnapshotState = (typeof COMPAT_SNAPSHOT_STATES)[number];

const Size = Type.Number({ minimum: 0, maximum: 1_000_000, description: '0: the default.' });

export const CompatSnapshotCreate = Type.Object({
  name: Type.String({ minLength: 1, maxLength: COMPAT_LIMITS.snapshotNameChars }),
  imageName: Type.Optional(Type.String({ maxLength: 512 })),
  entrypoint: Type.Optional(Type.Array(Type.String(), { maxItems: COMPAT_LIMITS.entrypointWords })),
  buildInfo: Type.Optional(CompatBuildInfo),
  cpu: Type.Optional(Type.Integer({ minimum: 0, maximum: 1024 })),
  gpu: Type.Optional(Type.Integer({ minimum: 0 })),
  gpuType: Type.Optional(Type.Array(Type.String())),
  memory: Type.Optional(Size),
  disk: Type.Optional(Size),
  regionId: Type.Optional(Type.String({ maxLength: 128 })),
});
export type CompatSnapshotCreate = Static<typeof CompatSnapshotCreate>;

const stringOrNull = Type.Union([Type.String(), Type.Null()]);

export const CompatSnapshot = Type.Object({
  id: Type.String(),
  organizationId: Type.Optional(Type.String()),
  general: Type.Boolean({ description: 'Built in: of no project.' }),
  name: Type.String(),
  imageName: Type.Optional(Type.String()),
  state: Type.Enum(COMPAT_SNAPSHOT_STATES),
  size: Type.Union([Type.Number(), Type.Null()], { description: 'GiB.' }),
  entrypoint: Type.Union([Type.Array(Type.String()), Type.Null()]),
  cpu: Type.Number(),
  gpu: Type.Number(),
  mem: Type.Number({ description: 'GiB.' }),
  disk: Type.Number({ description: 'GiB.' }),
  errorReason: stringOrNull,
  createdAt: Type.String({ format: 'date-time' }),
  updatedAt: Type.String({ format: 'date-time' }),
  lastUsedAt: Type.Union([Type.String({ format: 'date-time' }), Type.Null()]),
  buildInfo: Type.Optional(CompatBuildInfoRecord),
  regionIds: Type.Optional(Type.Array(Type.String())),
  ref: Type.Optional(Type.String()),
  sandboxClass: Type.Literal('linux-vm'),
});
export type CompatSnapshot = Static<typeof CompatSnapshot>;

export const CompatSnapshotList = Type.Object({
  items: Type.Array(CompatSnapshot),
  total: Type.Integer(),
  page: Type.Integer(),
  totalPages: Type.Integer(),
});

export const CompatSnapshotParams = Type.Object({ id: Type.String({ description: 'Id or name.' }) });

export const CompatSnapshotListQuery = Type.Object({
  page: Type.Optional(Type.Integer({ minimum: 1, maximum: 1_000_000 })),
  limit: Type.Optional(Type.Integer({ minimum: 1 })),
  name: Type.Optional(Type.String({ maxLength: COMPAT_LIMITS.snapshotNameChars })),
  sort: Type.Optional(Type.Enum(['name', 'state', 'lastUsedAt', 'createdAt'] as const)),
  order: Type.Optional(Type.Enum(['asc', 'desc'] as const)),
});
export type CompatSnapshotListQuery = Static<typeof CompatSnapshotListQuery>;

export const CompatBuildLogQuery = Type.Object({ follow: Type.Optional(Type.Boolean()) });
