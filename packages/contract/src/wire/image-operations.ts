/** The operations on images. */
import { ImageCreateRequest, ImageCreateResponse, ImageList, ImageRecord } from './image.ts';
import type { Operation } from './operation.ts';
import { PageQuery } from './paging.ts';
import type { ApiResource } from './resource.ts';

export const imageOperations = {
  createImage: {
    method: 'POST',
    path: '/images',
    tag: 'Images',
    summary: 'Create an image, or replace one of the same name',
    security: 'workload',
    body: ImageCreateRequest,
    idempotent: true,
    success: {
      status: 200,
      response: { description: 'Accepted; the job builds it.', schema: ImageCreateResponse },
    },
    errors: {
      400: 'Not JSON, no name, a name or source that is not valid, an unknown or disabled region.',
      503: 'The build queue is temporarily unavailable.',
    },
  },
  listImages: {
    method: 'GET',
    path: '/images',
    tag: 'Images',
    summary: 'List images, newest first',
    security: 'workload',
    query: PageQuery,
    success: { status: 200, response: { description: 'One page.', schema: ImageList } },
    errors: { 400: 'The cursor is malformed.' },
  },
} as const satisfies Record<string, Operation>;

export const imageResource = {
  tags: { Images: 'Named root file systems of a project.' },
  operations: imageOperations,
  schemas: {
    ImageCreate: ImageCreateRequest,
    ImageCreated: ImageCreateResponse,
    Image: ImageRecord,
    ImageList,
  },
} as const satisfies ApiResource;
