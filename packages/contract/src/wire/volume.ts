/** Volumes: named directory trees that outlive the sandboxes that have them mounted. */
import { Type, type Static } from 'typebox';
import { LIMITS } from './platform/limits.ts';
import { NextCursor, nextPage, pageFields, cursorKind } from './platform/paging.ts';

/** The allowed names of a volume, in words. */
export const VOLUME_NAME_FORM = `1 to ${LIMITS.volumeNameChars} characters of A-Z a-z 0-9 . _ -`;

export const VOLUME_TYPES = ['blockmount'] as const;

export const VolumeCreateRequest = Type.Object({
  name: Type.String({
    expected: VOLUME_NAME_FORM,
    description: 'Unique among those of the project that are not deleted.',
  }),
  type: Type.Optional(Type.Enum(VOLUME_TYPES, { default: 'blockmount' })),
  size_gb: Type.Optional(
    Type.Integer({
      minimum: LIMITS.volumeGbMin,
      maximum: LIMITS.volumeGbMax,
      default: LIMITS.volumeGbDefault,
      description:
        'Size of its file system in GiB. Writes beyond it fail with ENOSPC, in the sandboxes that have it mounted.',
    }),
  ),
});
export type VolumeCreateRequest = Static<typeof VolumeCreateRequest>;

export const VolumeState = Type.Enum(['ready', 'deleted'] as const);

export const VolumeRecord = Type.Object({
  id: Type.String({ format: 'uuid' }),
  name: Type.String({ description: 'Of a deleted one: with the suffix `-deleted`.' }),
  type: Type.Enum(VOLUME_TYPES),
  size_gb: Type.Integer(),
  state: VolumeState,
  created_at: Type.String({ format: 'date-time' }),
  updated_at: Type.String({ format: 'date-time' }),
  last_used_at: Type.Optional(
    Type.String({ format: 'date-time', description: 'When a sandbox last mounted it, or wrote to it.' }),
  ),
  used_bytes: Type.Optional(
    Type.Integer({ description: 'Size of its files as of the newest commit. Absent until the first.' }),
  ),
  used_bytes_at: Type.Optional(Type.String({ format: 'date-time', description: 'Of `used_bytes`.' })),
  error_reason: Type.Optional(
    Type.String({ description: 'Why changes are not committed: which host has them, and since when.' }),
  ),
});
export type VolumeRecord = Static<typeof VolumeRecord>;

/** What both sides of a merge changed, and where the version that was committed later is kept. */
export const VolumeConflict = Type.Object({
  path: Type.String({
    description: 'Below the root of the volume. It has the version that was committed first.',
  }),
  kept_as: Type.String({ description: 'The path of the other version.' }),
  kind: Type.String({
    description: 'What was changed on both sides, such as `content`, `type` or `delete`.',
  }),
  manifest_id: Type.Optional(
    Type.String({ format: 'uuid', description: 'The commit that merged them, while it is kept.' }),
  ),
  runner_id: Type.Optional(Type.String({ description: 'The machine whose version was kept beside.' })),
  created_at: Type.String({ format: 'date-time' }),
});
export type VolumeConflict = Static<typeof VolumeConflict>;

export const VolumeDetail = Type.Object({
  ...VolumeRecord.properties,
  last_manifest_id: Type.Optional(
    Type.String({ format: 'uuid', description: 'The newest commit. Absent until the first.' }),
  ),
  conflicts: Type.Array(VolumeConflict, { description: 'Newest first; at most the newest 100.' }),
});
export type VolumeDetail = Static<typeof VolumeDetail>;

/** A commit of a volume: the whole tree as it was. */
export const VolumeManifest = Type.Object({
  id: Type.String({ format: 'uuid' }),
  number: Type.Integer({ description: '1 for the first commit of the volume.' }),
  reason: Type.Enum(['background', 'detach', 'request', 'merge', 'restore'] as const, {
    description:
      'Why it was made: while sandboxes use the volume, when the last one of a host ended, on demand, to merge the changes of two ' +
      'hosts, or by a restore.',
  }),
  runner_id: Type.Optional(Type.String({ description: 'The machine that committed it.' })),
  restored_from: Type.Optional(
    Type.String({ format: 'uuid', description: 'Of a restore: the commit that it has the tree of.' }),
  ),
  used_bytes: Type.Integer({ description: 'Size of its files.' }),
  files: Type.Integer(),
  created_at: Type.String({ format: 'date-time' }),
});
export type VolumeManifest = Static<typeof VolumeManifest>;

export const VolumeManifestList = Type.Object({
  manifests: Type.Array(VolumeManifest),
  next_cursor: NextCursor,
});
export type VolumeManifestList = Static<typeof VolumeManifestList>;

/** Lists of commits. */
export const VOLUME_MANIFEST_CURSORS = cursorKind(15);

export const VolumeRestoreRequest = Type.Object({
  manifest_id: Type.String({ description: 'Id of one of its commits.' }),
});

export const VolumeList = Type.Object({ volumes: Type.Array(VolumeRecord), ...nextPage });
export type VolumeList = Static<typeof VolumeList>;

export const VolumeListQuery = Type.Object({
  ...pageFields,
  include_deleted: Type.Optional(Type.Boolean({ default: false, description: 'Also list deleted ones.' })),
});

export const VolumeDeleteResponse = Type.Object({
  id: Type.String({ format: 'uuid' }),
  state: Type.Literal('deleted'),
});
export type VolumeDeleteResponse = Static<typeof VolumeDeleteResponse>;
