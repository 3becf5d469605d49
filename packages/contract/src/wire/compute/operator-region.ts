/** What the operator does with regions, global regions and the regions that organizations and projects use by default. */
import { Type, type Static } from 'typebox';
import { nullable } from '../platform/fields.ts';
import { BOUNDS } from '../platform/limits.ts';
import type { Operation } from '../platform/operation.ts';
import { OrgParams } from '../tenancy/organization.ts';

/** Of a region or a global region. */
const Slug = Type.String({
  pattern: '^[a-z](?:[a-z0-9-]*[a-z0-9])?$',
  maxLength: BOUNDS.regionSlugChars,
  expected: `a slug: a-z, 0-9 and inner hyphens, a letter first, at most ${BOUNDS.regionSlugChars} characters`,
});
const RegionName = Type.String({ minLength: 1, maxLength: 128, description: 'Display name.' });

/** Where the bucket of a region is. */
const storeFields = {
  bucket: Type.String({
    pattern: '^[A-Za-z0-9][A-Za-z0-9._-]{1,254}$',
    expected: 'the name of a bucket',
  }),
  prefix: Type.String({
    pattern: '^(?:[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*)?$',
    maxLength: 256,
    expected: 'names of folders with / between them',
    description: 'Folder in the bucket; empty: none.',
  }),
  endpoint: nullable(
    Type.String({
      pattern: '^https?://[^\\s/?#@]+$',
      maxLength: 512,
      expected: 'an http:// or https:// URL without path, query and user',
    }),
    'Of the service; null: AWS.',
  ),
  s3_region: Type.String({
    pattern: '^[A-Za-z0-9-]{1,64}$',
    expected: 'the name of a region',
    description: 'With which requests are signed.',
  }),
};

export const OperatorRegionStore = Type.Object(storeFields, {
  description: 'The bucket in which the hosts of the region store images and snapshots.',
});
export type OperatorRegionStore = Static<typeof OperatorRegionStore>;

const Key = (description: string) =>
  Type.String({
    minLength: 1,
    maxLength: 512,
    pattern: '^[^\\s]+$',
    expected: 'a text without spaces',
    description,
  });

export const RegionStoreRequest = Type.Object({
  bucket: storeFields.bucket,
  prefix: Type.Optional(storeFields.prefix),
  endpoint: Type.Optional(storeFields.endpoint),
  s3_region: Type.Optional(storeFields.s3_region),
  credentials: Type.Object(
    { access_key_id: Key('Id of the access key.'), secret_access_key: Key('Its secret.') },
    { writeOnly: true, description: 'Kept encrypted, and never returned.' },
  ),
});
export type RegionStoreRequest = Static<typeof RegionStoreRequest>;

export const OperatorRegion = Type.Object({
  id: Type.String(),
  name: Type.String(),
  enabled: Type.Boolean({ description: 'It takes new sandboxes, and `GET /regions` lists it.' }),
  is_default: Type.Boolean(),
  global_region_id: Type.Union([Type.String(), Type.Null()]),
  toolbox_proxy_url: Type.Union([Type.String(), Type.Null()]),
  preview_url: Type.Union([Type.String(), Type.Null()]),
  store: nullable(OperatorRegionStore, 'Its own store; null: that of the deployment.'),
  hosts: Type.Integer(),
  sandboxes: Type.Integer({ description: 'Those that are not deleted.' }),
  default_of: Type.Object(
    { organizations: Type.Integer(), projects: Type.Integer() },
    { description: 'Organizations and projects that use it where they name none.' },
  ),
});
export type OperatorRegion = Static<typeof OperatorRegion>;

export const OperatorGlobalRegion = Type.Object({
  id: Type.String(),
  name: Type.String(),
  members: Type.Array(Type.String(), { description: 'Its regions, disabled ones too.' }),
});
export type OperatorGlobalRegion = Static<typeof OperatorGlobalRegion>;

export const OperatorRegionList = Type.Object({
  regions: Type.Array(OperatorRegion),
  global_regions: Type.Array(OperatorGlobalRegion),
});
export type OperatorRegionList = Static<typeof OperatorRegionList>;

const BaseUrl = (description: string) =>
  Type.Optional(
    nullable(
      Type.String({
        pattern: '^https?://[^\\s/?#]+[^\\s?#]*$',
        maxLength: 512,
        expected: 'an http:// or https:// URL without query',
      }),
      description,
    ),
  );

const regionFields = {
  name: Type.Optional(RegionName),
  enabled: Type.Optional(Type.Boolean()),
  is_default: Type.Optional(
    Type.Literal(true, { description: 'Makes it the default of the platform, in place of the one before.' }),
  ),
  global_region_id: Type.Optional(nullable(Slug, 'The global region that it belongs to; null: none.')),
  toolbox_proxy_url: BaseUrl('Base URL of the toolbox of its sandboxes; null: it has no gateway.'),
  preview_url: BaseUrl('Base URL of its previews; null: it has none.'),
};

export const RegionCreateRequest = Type.Object({ id: Slug, ...regionFields });
export type RegionCreateRequest = Static<typeof RegionCreateRequest>;

export const RegionUpdateRequest = Type.Object(regionFields, { minProperties: 1 });
export type RegionUpdateRequest = Static<typeof RegionUpdateRequest>;

export const GlobalRegionCreateRequest = Type.Object({ id: Slug, name: Type.Optional(RegionName) });
export const GlobalRegionUpdateRequest = Type.Object({ name: RegionName });

export const DefaultRegionRequest = Type.Object({
  region: nullable(
    Type.String(),
    'Slug of a region, id of a global region, or `world`. Null: that of the organization, else that of the platform.',
  ),
});
export const DefaultRegion = Type.Object({
  id: Type.String({ description: 'Of the organization or project.' }),
  region: Type.Union([Type.String(), Type.Null()]),
});
export type DefaultRegion = Static<typeof DefaultRegion>;

const RegionParams = Type.Object({ id: Type.String() });
const onRegion = { tag: 'Regions', security: 'operator', params: RegionParams } as const;

export const operatorRegionOperations = {
  listAllRegions: {
    method: 'GET',
    path: '/operator/regions',
    tag: 'Regions',
    summary: 'List all regions, disabled ones too, and the global regions',
    security: 'operator',
    items: 'regions',
    success: { status: 200, response: { description: 'All of them, by id.', schema: OperatorRegionList } },
    errors: {},
  },
  createRegion: {
    method: 'POST',
    path: '/operator/regions',
    tag: 'Regions',
    summary: 'Create a region',
    description:
      'Hosts that are configured with its slug can join then. A server creates its own region when it starts.',
    security: 'operator',
    body: RegionCreateRequest,
    success: { status: 201, response: { description: 'Created.', schema: OperatorRegion } },
    codes: ['name_exists'],
    errors: {
      400: 'A field is not valid, or there is no such global region.',
      409: 'A region or a global region has this id, or the default would be disabled.',
    },
  },
  updateRegion: {
    ...onRegion,
    method: 'PATCH',
    path: '/operator/regions/:id',
    summary: 'Change a region',
    description:
      'A disabled region takes no new sandboxes, and `GET /regions` omits it. Its sandboxes and functions continue. A server ' +
      'whose configuration has a name or a URL for its region sets them again when it starts.',
    body: RegionUpdateRequest,
    success: { status: 200, response: { description: 'Changed.', schema: OperatorRegion } },
    errors: {
      400: 'A field is not valid, or there is no such global region.',
      404: 'There is no such region.',
      409: 'It is the default and would be disabled, or it is disabled and would be the default.',
    },
  },
  deleteRegion: {
    ...onRegion,
    method: 'DELETE',
    path: '/operator/regions/:id',
    summary: 'Delete a region that is disabled and empty',
    success: { status: 204, response: { description: 'Deleted.' } },
    codes: ['in_use'],
    errors: {
      404: 'There is no such region.',
      409: 'It is enabled, or something is in it or refers to it: `error` lists what.',
    },
  },
  setRegionStore: {
    ...onRegion,
    method: 'PUT',
    path: '/operator/regions/:id/store',
    summary: 'Give a region an S3 bucket of its own',
    description:
      'Hosts of the region store images and snapshots there and fetch them from it. Those that are in another store are copied when they ' +
      'are used in the region first. Keys are replaced by the same request with new ones. The bucket is tried first.',
    body: RegionStoreRequest,
    success: { status: 200, response: { description: 'Set.', schema: OperatorRegion } },
    errors: {
      400: 'A field is not valid, or nothing can be written to the bucket: `error` says why.',
      404: 'There is no such region.',
    },
  },
  removeRegionStore: {
    ...onRegion,
    method: 'DELETE',
    path: '/operator/regions/:id/store',
    summary: 'Return a region to the store of the deployment',
    description:
      'What is in its bucket stays there and can be used: it is copied when it is used next. The service removes it once nothing needs it.',
    success: { status: 200, response: { description: 'Returned.', schema: OperatorRegion } },
    errors: { 404: 'There is no such region.' },
  },
  createGlobalRegion: {
    method: 'POST',
    path: '/operator/global-regions',
    tag: 'Regions',
    summary: 'Create a global region',
    security: 'operator',
    body: GlobalRegionCreateRequest,
    success: { status: 201, response: { description: 'Created.', schema: OperatorGlobalRegion } },
    codes: ['name_exists'],
    errors: { 400: 'A field is not valid.', 409: 'A region or a global region has this id.' },
  },
  updateGlobalRegion: {
    ...onRegion,
    method: 'PATCH',
    path: '/operator/global-regions/:id',
    summary: 'Rename a global region',
    body: GlobalRegionUpdateRequest,
    success: { status: 200, response: { description: 'Renamed.', schema: OperatorGlobalRegion } },
    errors: { 400: 'The name is not valid.', 404: 'There is no such global region.' },
  },
  deleteGlobalRegion: {
    ...onRegion,
    method: 'DELETE',
    path: '/operator/global-regions/:id',
    summary: 'Delete a global region without regions',
    success: { status: 204, response: { description: 'Deleted.' } },
    codes: ['in_use'],
    errors: {
      404: 'There is no such global region.',
      409: 'Regions belong to it, or it is the default of an organization or a project.',
    },
  },
  setDefaultRegionOfOrg: {
    ...onRegion,
    method: 'PUT',
    path: '/operator/orgs/:id/default-region',
    summary: 'Set the default region of an organization',
    params: OrgParams,
    body: DefaultRegionRequest,
    success: { status: 200, response: { description: 'Set.', schema: DefaultRegion } },
    codes: ['unknown_region'],
    errors: { 400: 'There is no such region, or it is disabled.', 404: 'There is no such organization.' },
  },
  setDefaultRegionOfProject: {
    ...onRegion,
    method: 'PUT',
    path: '/operator/projects/:id/default-region',
    summary: 'Set the default region of a project',
    body: DefaultRegionRequest,
    success: { status: 200, response: { description: 'Set.', schema: DefaultRegion } },
    codes: ['unknown_region'],
    errors: { 400: 'There is no such region, or it is disabled.', 404: 'There is no such project.' },
  },
} as const satisfies Record<string, Operation>;
