/** The operations on images. */
import {
  ImageCreateRequest,
  ImageCreateResponse,
  ImageForm,
  ImageList,
  ImageParams,
  ImageRecord,
} from './image.ts';
import { DockerfileSource, NamedSource, RegistrySource, SnapshotSource } from './image-source.ts';
import type { Operation, ApiResource } from './platform/operation.ts';
import { PageQuery } from './platform/paging.ts';

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
