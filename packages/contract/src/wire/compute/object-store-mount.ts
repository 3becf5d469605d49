/** Mounts of object stores in sandboxes that run. */
import { Type, type Static } from 'typebox';
import { HOST_STARTING } from '../platform/fields.ts';
import type { ApiResource } from '../platform/operation.ts';
import { ObjectStoreMountRequest } from './sandbox-create.ts';
import { SandboxParams } from './sandbox-record.ts';

export const ObjectStoreMount = Type.Object({
  object_store: Type.String({ description: 'Name of the object store.' }),
  object_store_id: Type.String({ format: 'uuid' }),
  mount_path: Type.String(),
  read_only: Type.Boolean(),
  created_at: Type.String({ format: 'date-time' }),
});
export type ObjectStoreMount = Static<typeof ObjectStoreMount>;

export const ObjectStoreMountList = Type.Object({ object_store_mounts: Type.Array(ObjectStoreMount) });
export type ObjectStoreMountList = Static<typeof ObjectStoreMountList>;

export const ObjectStoreUnmountResponse = Type.Object({
  object_store: Type.String(),
  mount_paths: Type.Array(Type.String(), { description: 'What was unmounted.' }),
});
export type ObjectStoreUnmountResponse = Static<typeof ObjectStoreUnmountResponse>;

const unknownSandbox = 'The id of the sandbox is unknown, malformed or of another project';

export const objectStoreMountOperations = {
  mountObjectStore: {
    method: 'POST',
    path: '/vms/:id/object-store-mounts',
    tag: 'Mounts of object stores',
    summary: 'Mount an object store in a sandbox that runs',
    description:
      'It is mounted again whenever the sandbox starts, and by the same request where the mount is not there any more. A bucket that cannot be reached is no error here: its files cannot be read then.',
    security: 'workload',
    params: SandboxParams,
    body: ObjectStoreMountRequest,
    success: { status: 200, response: { description: 'Mounted.', schema: ObjectStoreMount } },
    codes: [
      'object_store_not_found',
      'ambiguous_reference',
      'mount_path_taken',
      'mount_rejected',
      'no_capacity',
      'secret_missing',
      'sandbox_not_running',
      'limit_reached',
      'concurrent_change',
    ],
    errors: {
      400: 'The mount path is not valid or reserved, the sandbox has 8 mounts, or the text is the id of one object store and the name of another.',
      404: `${unknownSandbox}; no object store of the project has this id or name.`,
      409: 'The sandbox is not running; something is mounted at the path; the store or its credentials were deleted; the sandbox rejected the mount; its host cannot mount object stores yet.',
      502: 'The host of the sandbox did not answer.',
      503: HOST_STARTING,
    },
  },
  listObjectStoreMounts: {
    method: 'GET',
    path: '/vms/:id/object-store-mounts',
    tag: 'Mounts of object stores',
    summary: 'List the object stores that a sandbox has mounted, or mounts when it starts',
    security: 'workload',
    params: SandboxParams,
    items: 'object_store_mounts',
    success: { status: 200, response: { description: 'By path.', schema: ObjectStoreMountList } },
    errors: { 404: `${unknownSandbox}.` },
  },
  unmountObjectStore: {
    method: 'DELETE',
    path: '/vms/:id/object-store-mounts/:name',
    tag: 'Mounts of object stores',
    summary: 'Unmount an object store in a sandbox that runs, wherever it is mounted',
    description: 'What was written is uploaded before.',
    security: 'workload',
    params: Type.Object({
      ...SandboxParams.properties,
      name: Type.String({ description: 'Name or id of the object store.' }),
    }),
    success: { status: 200, response: { description: 'Unmounted.', schema: ObjectStoreUnmountResponse } },
    codes: ['mount_rejected', 'sandbox_not_running', 'concurrent_change'],
    errors: {
      404: `${unknownSandbox}; it has no such object store mounted.`,
      409: 'The sandbox is not running, or rejected the unmount: files there are open, or not uploaded yet.',
      502: 'The host of the sandbox did not answer.',
      503: HOST_STARTING,
    },
  },
} as const;

export const objectStoreMountResource = {
  tags: {
    'Mounts of object stores': 'Buckets as folders of a sandbox. See [object-stores.md](object-stores.md).',
  },
  operations: objectStoreMountOperations,
  schemas: { ObjectStoreMount },
} as const satisfies ApiResource;
