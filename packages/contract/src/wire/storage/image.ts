/** Named images of a project, and the source of a root file system in requests. */
import { Type, type Static } from 'typebox';
import { UpdatedAt } from '../platform/fields.ts';
import type { ApiResource, Operation } from '../platform/operation.ts';
import { cursorKind, NextCursor, PageQuery } from '../platform/paging.ts';

export const RegistrySource = Type.Object({
  type: Type.Literal('registry'),
  ref: Type.String({ description: 'Registry reference, as in `node:20` or `registry.example.com/app:1.0`.' }),
});
export const NamedSource = Type.Object({
  type: Type.Literal('named'),
  name: Type.String({ description: 'Name of an image of this project.' }),
});
export const DockerfileSource = Type.Object({
  type: Type.Literal('dockerfile'),
  dockerfile: Type.String({ description: 'The text of a Dockerfile that needs no build context.' }),
  docker: Type.Optional(
    Type.Boolean({
      description: 'Prepares what is built for Docker, as `docker` of `POST /images` does. Default false.',
    }),
  ),
});
export const SnapshotSource = Type.Object({
  type: Type.Literal('snapshot'),
  name: Type.String({ description: 'Name of a snapshot of this project.' }),
});

/**
 * A request has such an object, or a string. A string with a `/` or a `:` is a registry reference; any other is the name of an
 * image of the project.
 */
export const ImageSource = Type.Union([RegistrySource, NamedSource, DockerfileSource, SnapshotSource]);
/** Validated. `ref` is unchanged: `parseImageReference` parses it. */
export type ImageSource = Static<typeof ImageSource>;

/** The allowed image sources, in words. */
export const IMAGE_SOURCE_FORM =
  'an image name, a registry reference (it has a "/" or a ":"), or an object ' +
  '{type: "registry", ref}, {type: "named", name}, {type: "dockerfile", dockerfile} or {type: "snapshot", name}';

/** The field `image` of a create. */
export const ImageInput = Type.Union([Type.String(), ...ImageSource.anyOf], {
  expected: IMAGE_SOURCE_FORM,
  description: 'A bare string with a `/` or a `:` is a registry reference, any other an image name.',
});

export const IMAGE_STATUSES = ['pending', 'ready', 'failed'] as const;
export const ImageStatus = Type.Enum(IMAGE_STATUSES);
export type ImageStatus = Static<typeof ImageStatus>;

const Name = Type.String({
  minLength: 1,
  description: 'Unique in the project. Posting a name again replaces its source and rebuilds it.',
});
const Region = Type.String({ description: 'Slug of a region or id of a global region.' });

/** Of the field of a request. */
const DOCKER =
  'Prepares it for Docker: the build installs `dockerd` where it is missing, and sandboxes keep it running.';

export const ImageCreateRequest = Type.Object({
  name: Name,
  source: ImageInput,
  docker: Type.Optional(Type.Boolean({ default: false, description: DOCKER })),
  region: Type.Optional(Region),
});
export type ImageCreateRequest = Static<typeof ImageCreateRequest>;

/** Values of the form field `docker`; `0`, `false`, `no`, `off` and an empty one are the opposite. */
export const FORM_TRUE = ['1', 'true', 'yes', 'on'] as const;

/** The same as a multipart form, for a Dockerfile with a build context. */
export const ImageForm = Type.Object({
  name: Name,
  context: Type.String({
    format: 'binary',
    description: 'A file: the build context, a tar archive, plain or gzip.',
  }),
  dockerfile: Type.Optional(
    Type.String({ default: 'Dockerfile', description: 'Path of the Dockerfile in the context.' }),
  ),
  docker: Type.Optional(
    Type.String({
      description: `${DOCKER} One of ${FORM_TRUE.map((one) => `\`${one}\``).join(', ')}.`,
    }),
  ),
  region: Type.Optional(Region),
});
export type ImageForm = Static<typeof ImageForm>;

export const ImageParams = Type.Object({
  id_or_name: Type.String({ description: 'Id or name of an image.' }),
});

export const ImageCreateResponse = Type.Object({
  image_id: Type.String({ format: 'uuid' }),
  job_id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  status: ImageStatus,
  region: Type.String(),
});
export type ImageCreateResponse = Static<typeof ImageCreateResponse>;

export const ImageRecord = Type.Object({
  id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  source: Type.Object(
    { type: Type.String() },
    {
      additionalProperties: true,
      description:
        'As it was posted; of a build context `{type: "dockerfile", path, context_bytes}`, and `{type: "builtin", name}` of ' +
        'a built-in image.',
    },
  ),
  manifest_name: Type.Optional(
    Type.String({
      description:
        'Digest of what sandboxes boot; once built. During a rebuild, and after one that failed, that of the build before.',
    }),
  ),
  status: ImageStatus,
  layer_count: Type.Optional(Type.Integer({ description: 'Layers of the same; once built.' })),
  bytes: Type.Optional(Type.Integer({ description: 'Size of its root file system; once known.' })),
  docker: Type.Boolean({ description: 'Whether it was posted to be prepared for Docker.' }),
  error: Type.Optional(
    Type.Union([Type.String(), Type.Null()], {
      description: 'Why the newest build failed: the reason, and the last lines of its log.',
    }),
  ),
  job_id: Type.Optional(Type.String({ format: 'uuid', description: 'Its newest build.' })),
  region: Type.Optional(Type.String({ description: 'Its home region.' })),
  created_at: Type.Optional(Type.String({ format: 'date-time', description: 'RFC 3339.' })),
  updated_at: Type.Optional(UpdatedAt),
  built_at: Type.Optional(
    Type.String({ format: 'date-time', description: 'When what sandboxes boot was built.' }),
  ),
});
export type ImageRecord = Static<typeof ImageRecord>;

export const ImageList = Type.Object({ images: Type.Array(ImageRecord), next_cursor: NextCursor });
export type ImageList = Static<typeof ImageList>;

/** Cursors of lists of images. */
export const IMAGE_CURSORS = cursorKind(2);

const MIB = 1024 * 1024;
const unknownImage = 'No image of the project has this id or name.';
const ambiguous = 'The text is the id of one image and the name of another.';

export const imageOperations = {
  createImage: {
    method: 'POST',
    path: '/images',
    tag: 'Images',
    summary: 'Create an image, or replace one of the same name',
    description:
      'From a registry reference or the text of a Dockerfile as JSON, or from a Dockerfile and its build context as a form ' +
      '(at most 512 MiB, unless the operator has set another limit). Responds as soon as the build is queued: follow it with ' +
      '`GET /jobs/:id` and `GET /jobs/:id/logs?follow=1`. Until a rebuild is done, and if it fails, sandboxes boot what the ' +
      'name was built to before; a build that a newer one replaces is cancelled. [images.md](images.md) has the details.',
    security: 'workload',
    consumes: ['application/json', 'multipart/form-data'],
    body: ImageCreateRequest,
    form: ImageForm,
    // The operator's limit of a build context is checked while it is stored; this one bounds that setting.
    upload: { bytes: 64 * 1024 * MIB, files: 8, fieldBytes: 64 * 1024 },
    idempotent: true,
    success: {
      status: 200,
      response: { description: 'Accepted; the job builds it.', schema: ImageCreateResponse },
    },
    codes: ['unknown_region', 'limit_reached', 'quota_exceeded'],
    errors: {
      400:
        'Neither JSON nor a valid form; no name, no source or no context file; a name, source or field that is not valid; a ' +
        'context that is not a tar archive or is too large; an unknown or disabled region.',
      402: 'The organization is out of credits.',
      503: 'The build queue is temporarily unavailable, or the service has no space for the context.',
    },
  },
  getImage: {
    method: 'GET',
    path: '/images/:id_or_name',
    tag: 'Images',
    summary: 'Read an image',
    security: 'workload',
    params: ImageParams,
    success: { status: 200, response: { description: 'The record.', schema: ImageRecord } },
    codes: ['ambiguous_reference'],
    errors: { 400: ambiguous, 404: unknownImage },
  },
  deleteImage: {
    method: 'DELETE',
    path: '/images/:id_or_name',
    tag: 'Images',
    summary: 'Delete an image',
    description:
      'Its name is free at once, and its build is cancelled. Sandboxes that were created from it, and snapshots of them, keep ' +
      'what they run from.',
    security: 'workload',
    params: ImageParams,
    success: { status: 204, response: { description: 'Deleted.' } },
    codes: ['ambiguous_reference', 'built_in', 'in_use'],
    errors: { 400: ambiguous, 404: unknownImage, 409: 'It is a built-in image.' },
  },
  listImages: {
    method: 'GET',
    path: '/images',
    tag: 'Images',
    summary: 'List images, newest first',
    security: 'workload',
    query: PageQuery,
    items: 'images',
    success: { status: 200, response: { description: 'One page.', schema: ImageList } },
    errors: { 400: 'The cursor is malformed.' },
  },
} as const satisfies Record<string, Operation>;

export const imageResource = {
  tags: { Images: 'Named root file systems of a project.' },
  operations: imageOperations,
  schemas: {
    ImageCreate: ImageCreateRequest,
    ImageForm,
    ImageCreated: ImageCreateResponse,
    Image: ImageRecord,
    ImageList,
    RegistrySource,
    NamedSource,
    DockerfileSource,
    SnapshotSource,
  },
} as const satisfies ApiResource;
