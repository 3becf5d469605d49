/** Object stores: references to buckets of S3-compatible services, whose credentials are secrets of the project. */
import { Type, type Static } from 'typebox';
import { BOUNDS, LIMITS } from '../platform/limits.ts';
import type { ApiResource } from '../platform/operation.ts';
import { nextPage, pageFields } from '../platform/paging.ts';
import { ofProject, ProjectParams } from '../tenancy/project.ts';

/** The allowed names of an object store, in words. */
export const OBJECT_STORE_NAME_FORM = `1 to ${LIMITS.objectStoreNameChars} characters of A-Z a-z 0-9 . _ -`;

/** The service behind the endpoint, as rclone names it. Empty: unknown. */
export const OBJECT_STORE_PROVIDERS = ['', 'AWS', 'Minio', 'Ceph', 'Cloudflare', 'Other'] as const;

const secretName = (what: string) =>
  Type.String({ minLength: 1, description: `Name of the secret of the project that holds ${what}.` });

export const ObjectStoreCreateRequest = Type.Object({
  name: Type.String({
    expected: OBJECT_STORE_NAME_FORM,
    description: 'Unique among those of the project that are not deleted.',
  }),
  bucket: Type.String({ minLength: 1, maxLength: BOUNDS.bucketChars }),
  access_key_secret: secretName('the access key id'),
  secret_key_secret: secretName('the secret access key'),
  session_token_secret: Type.Optional(secretName('the session token of temporary credentials (STS)')),
  endpoint: Type.Optional(
    Type.String({
      maxLength: BOUNDS.endpointChars,
      default: '',
      description: 'An `http://` or `https://` URL. Empty: AWS.',
    }),
  ),
  region: Type.Optional(Type.String({ maxLength: BOUNDS.storeRegionChars, default: '' })),
  prefix: Type.Optional(
    Type.String({
      maxLength: BOUNDS.keyPrefixChars,
      default: '',
      description: 'Only objects below it are mounted. Slashes at its ends are removed.',
    }),
  ),
  path_style: Type.Optional(
    Type.Boolean({
      default: false,
      description: 'Address the bucket in the path, not in the host name: MinIO and its like need it.',
    }),
  ),
  read_only: Type.Optional(
    Type.Boolean({ default: false, description: 'The default of mounts, each of which may differ.' }),
  ),
  provider: Type.Optional(Type.Enum(OBJECT_STORE_PROVIDERS, { default: '' })),
  dir_cache_secs: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: LIMITS.dirCacheSecsMax,
      default: 0,
      description:
        'How long a mount keeps the list of a folder, in seconds. Lower values show changes of others sooner. 0: the default.',
    }),
  ),
});
export type ObjectStoreCreateRequest = Static<typeof ObjectStoreCreateRequest>;

export const ObjectStoreState = Type.Enum(['ready', 'deleted'] as const);

export const ObjectStoreRecord = Type.Object({
  id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  bucket: Type.String(),
  access_key_secret: Type.String(),
  secret_key_secret: Type.String(),
  session_token_secret: Type.Optional(Type.String()),
  endpoint: Type.String(),
  region: Type.String(),
  prefix: Type.String(),
  path_style: Type.Boolean(),
  read_only: Type.Boolean(),
  provider: Type.Enum(OBJECT_STORE_PROVIDERS),
  dir_cache_secs: Type.Integer(),
  state: ObjectStoreState,
  created_at: Type.String({ format: 'date-time' }),
  updated_at: Type.String({ format: 'date-time' }),
});
export type ObjectStoreRecord = Static<typeof ObjectStoreRecord>;

export const ObjectStoreList = Type.Object({ object_stores: Type.Array(ObjectStoreRecord), ...nextPage });
export type ObjectStoreList = Static<typeof ObjectStoreList>;

export const ObjectStoreListQuery = Type.Object({
  ...pageFields,
  include_deleted: Type.Optional(Type.Boolean({ default: false, description: 'Also list deleted ones.' })),
});

export const ObjectStoreDeleteResponse = Type.Object({
  id: Type.String({ format: 'uuid' }),
  state: Type.Literal('deleted'),
});
export type ObjectStoreDeleteResponse = Static<typeof ObjectStoreDeleteResponse>;

const StoreParams = Type.Object({
  id_or_name: Type.String({ description: 'Id or name of an object store.' }),
});
const ProjectStoreParams = Type.Object({
  ...ProjectParams.properties,
  name: Type.String({ description: 'Id or name of an object store.' }),
});

const unknownStore = 'No object store of the project has this id or name, or it was deleted.';
const ambiguous = 'The text is the id of one object store and the name of another.';

const createObjectStore = {
  method: 'POST',
  path: '/object-stores',
  tag: 'Object stores',
  summary: 'Create an object store',
  description:
    'Records where the bucket is and which secrets of the project hold its credentials. It is `ready` at once: the bucket is ' +
    'not contacted.',
  security: 'workload',
  body: ObjectStoreCreateRequest,
  idempotent: true,
  success: { status: 200, response: { description: 'Created.', schema: ObjectStoreRecord } },
  codes: ['name_exists', 'limit_reached'],
  errors: {
    400:
      'The name, bucket, endpoint, region, prefix, provider or `dir_cache_secs` is not valid, the name of a credential is ' +
      'missing, the project has no secret of that name, or it has as many object stores as it may.',
    409: 'The project has an object store of this name.',
  },
} as const;

const listObjectStores = {
  method: 'GET',
  path: '/object-stores',
  tag: 'Object stores',
  summary: 'List object stores, newest first',
  description: 'At most the newest 1,000 deleted ones are listed.',
  security: 'workload',
  query: ObjectStoreListQuery,
  items: 'object_stores',
  success: { status: 200, response: { description: 'Never a credential.', schema: ObjectStoreList } },
  errors: { 400: 'A query parameter is not valid.' },
} as const;

const getObjectStore = {
  method: 'GET',
  path: '/object-stores/:id_or_name',
  tag: 'Object stores',
  summary: 'Read an object store',
  security: 'workload',
  params: StoreParams,
  success: { status: 200, response: { description: 'The record.', schema: ObjectStoreRecord } },
  codes: ['ambiguous_reference'],
  errors: { 400: ambiguous, 404: unknownStore },
} as const;

const deleteObjectStore = {
  method: 'DELETE',
  path: '/object-stores/:id_or_name',
  tag: 'Object stores',
  summary: 'Delete an object store',
  description: 'Its name is free at once. Its bucket and the secrets with its credentials stay.',
  security: 'workload',
  params: StoreParams,
  success: { status: 200, response: { description: 'Deleted.', schema: ObjectStoreDeleteResponse } },
  codes: ['ambiguous_reference', 'in_use'],
  errors: {
    400: ambiguous,
    404: unknownStore,
    409: 'A sandbox that is not deleted has it mounted, or mounts it when it starts.',
  },
} as const;

export const objectStoreOperations = {
  createObjectStore,
  listObjectStores,
  getObjectStore,
  deleteObjectStore,
  createProjectObjectStore: ofProject(createObjectStore, ProjectParams),
  listProjectObjectStores: ofProject(listObjectStores, ProjectParams),
  getProjectObjectStore: ofProject(
    { ...getObjectStore, path: '/object-stores/:name' } as const,
    ProjectStoreParams,
  ),
  deleteProjectObjectStore: ofProject(
    { ...deleteObjectStore, path: '/object-stores/:name' } as const,
    ProjectStoreParams,
  ),
} as const;

export const objectStoreResource = {
  tags: {
    'Object stores':
      'References to buckets of S3-compatible services. [object-stores.md](object-stores.md) describes them in full.',
  },
  operations: objectStoreOperations,
  schemas: { ObjectStore: ObjectStoreRecord, ObjectStoreCreate: ObjectStoreCreateRequest },
} as const satisfies ApiResource;
