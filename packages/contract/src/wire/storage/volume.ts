/** Volumes: named directory trees that outlive the sandboxes that have them mounted. */
import { Type, type Static } from 'typebox';
import { LIMITS } from '../platform/limits.ts';
import type { ApiResource } from '../platform/operation.ts';
import { cursorKind, NextCursor, nextPage, pageFields, PageQuery } from '../platform/paging.ts';
import { ofProject, ProjectParams } from '../tenancy/project.ts';

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

const VolumeParams = Type.Object({ id_or_name: Type.String({ description: 'Id or name of a volume.' }) });
const ProjectVolumeParams = Type.Object({
  ...ProjectParams.properties,
  name: Type.String({ description: 'Id or name of a volume.' }),
});

const unknownVolume = 'No volume of the project has this id or name, or it was deleted.';
const ambiguous = 'The text is the id of one volume and the name of another.';

const createVolume = {
  method: 'POST',
  path: '/volumes',
  tag: 'Volumes',
  summary: 'Create a volume',
  description: 'It is `ready` at once, and empty. Nothing is stored for it until a sandbox writes to it.',
  security: 'workload',
  body: VolumeCreateRequest,
  idempotent: true,
  success: { status: 200, response: { description: 'Created.', schema: VolumeRecord } },
  codes: ['name_exists', 'limit_reached', 'unknown_region', 'quota_exceeded'],
  errors: {
    400: 'The name is not valid, the type is not supported, `size_gb` is out of range, or the project has as many volumes as it may.',
    409: 'The project has a volume of this name.',
  },
} as const;

const listVolumes = {
  method: 'GET',
  path: '/volumes',
  tag: 'Volumes',
  summary: 'List volumes, newest first',
  description: 'At most the newest 1,000 deleted ones are listed.',
  security: 'workload',
  query: VolumeListQuery,
  items: 'volumes',
  success: { status: 200, response: { description: 'All of the project.', schema: VolumeList } },
  errors: { 400: 'A query parameter is not valid.' },
} as const;

const getVolume = {
  method: 'GET',
  path: '/volumes/:id_or_name',
  tag: 'Volumes',
  summary: 'Read a volume',
  description: 'With its newest commit and its newest conflicts, which lists do not have.',
  security: 'workload',
  params: VolumeParams,
  success: { status: 200, response: { description: 'The record.', schema: VolumeDetail } },
  codes: ['ambiguous_reference'],
  errors: { 400: ambiguous, 404: unknownVolume },
} as const;

const deleteVolume = {
  method: 'DELETE',
  path: '/volumes/:id_or_name',
  tag: 'Volumes',
  summary: 'Delete a volume with everything in it',
  description: 'Its name is free at once: the record is renamed to `<name>-deleted`.',
  security: 'workload',
  params: VolumeParams,
  success: { status: 200, response: { description: 'Deleted.', schema: VolumeDeleteResponse } },
  codes: ['ambiguous_reference', 'in_use'],
  errors: { 400: ambiguous, 404: unknownVolume, 409: 'A sandbox that is not deleted has it attached.' },
} as const;

const listVolumeManifests = {
  method: 'GET',
  path: '/volumes/:id_or_name/manifests',
  tag: 'Volumes',
  summary: 'List the commits of a volume, newest first',
  description:
    'Beside the newest ten, all of the last hour and the last one of each earlier hour are kept, for `RELEAP_VOLUME_HISTORY_DAYS`.',
  security: 'workload',
  params: VolumeParams,
  query: PageQuery,
  items: 'manifests',
  success: { status: 200, response: { description: 'One page.', schema: VolumeManifestList } },
  codes: ['ambiguous_reference'],
  errors: { 400: `The cursor is malformed. Or: ${ambiguous}`, 404: unknownVolume },
} as const;

const restoreVolume = {
  method: 'POST',
  path: '/volumes/:id_or_name/restore',
  tag: 'Volumes',
  summary: 'Make the tree of an older commit the newest again',
  description: 'It is a new commit: restoring the one before undoes it. Repeated, it changes nothing.',
  security: 'workload',
  params: VolumeParams,
  body: VolumeRestoreRequest,
  success: { status: 200, response: { description: 'Restored.', schema: VolumeDetail } },
  codes: ['ambiguous_reference', 'volume_commit_not_found', 'in_use', 'concurrent_change'],
  errors: {
    400: ambiguous,
    404: `${unknownVolume} Or it has no such commit.`,
    409: 'A sandbox that is starting or running has it mounted, or a host has changes that it has not committed yet.',
  },
} as const;

const commitVolume = {
  method: 'POST',
  path: '/volumes/:id_or_name/commit',
  tag: 'Volumes',
  summary: 'Commit what sandboxes have written',
  description:
    'Answers when every host that has the volume mounted or changed has committed what was written before the request.',
  security: 'workload',
  params: VolumeParams,
  success: { status: 200, response: { description: 'Committed.', schema: VolumeDetail } },
  codes: ['ambiguous_reference', 'host_lost', 'concurrent_change'],
  errors: {
    400: ambiguous,
    404: unknownVolume,
    409: 'A host with changes is lost.',
    504: 'A host has not committed within a minute. The commit continues in the background.',
  },
} as const;

export const volumeOperations = {
  createVolume,
  listVolumes,
  getVolume,
  deleteVolume,
  listVolumeManifests,
  restoreVolume,
  commitVolume,
  createProjectVolume: ofProject(createVolume, ProjectParams),
  listProjectVolumes: ofProject(listVolumes, ProjectParams),
  getProjectVolume: ofProject({ ...getVolume, path: '/volumes/:name' } as const, ProjectVolumeParams),
  deleteProjectVolume: ofProject({ ...deleteVolume, path: '/volumes/:name' } as const, ProjectVolumeParams),
  listProjectVolumeManifests: ofProject(
    { ...listVolumeManifests, path: '/volumes/:name/manifests' } as const,
    ProjectVolumeParams,
  ),
  restoreProjectVolume: ofProject(
    { ...restoreVolume, path: '/volumes/:name/restore' } as const,
    ProjectVolumeParams,
  ),
  commitProjectVolume: ofProject(
    { ...commitVolume, path: '/volumes/:name/commit' } as const,
    ProjectVolumeParams,
  ),
} as const;

export const volumeResource = {
  tags: { Volumes: 'Directory trees that outlive the sandboxes that have them mounted.' },
  operations: volumeOperations,
  schemas: { Volume: VolumeRecord, VolumeDetail, VolumeCreate: VolumeCreateRequest, VolumeManifest },
} as const satisfies ApiResource;
