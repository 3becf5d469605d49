/** The operations on volumes, on both planes. */
import { Type } from 'typebox';
import { ProjectParams, ofProject } from './tenancy/project.ts';
import { PageQuery } from './platform/paging.ts';
import type { ApiResource } from './platform/operation.ts';
import {
  VolumeCreateRequest,
  VolumeDeleteResponse,
  VolumeDetail,
  VolumeList,
  VolumeListQuery,
  VolumeManifest,
  VolumeManifestList,
  VolumeRecord,
  VolumeRestoreRequest,
} from './volume.ts';

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
